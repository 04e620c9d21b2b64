package config

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Document returns docs/config.md: every setting, printed from the tags, the
// defaults and the tables of old names.
func Document() []byte {
	var out bytes.Buffer
	out.WriteString(documentHead)
	c := Default()
	section := "\x00"
	for _, f := range fieldsOf(&c) {
		in := ""
		if i := strings.LastIndexByte(f.key, '.'); i >= 0 {
			in = f.key[:i]
		}
		if in != section {
			section = in
			title := "Everywhere"
			if in != "" {
				title = "`" + in + "`"
			}
			fmt.Fprintf(&out, "\n## %s\n\n| key | variable | default | meaning |\n| --- | --- | --- | --- |\n", title)
		}
		fmt.Fprintf(&out, "| `%s` | `%s` | %s | %s |\n", f.key, f.env, shown(f), f.doc)
	}
	out.WriteString(legacyHead)
	for _, r := range renames(fieldsOf(&c)) {
		fmt.Fprintf(&out, "| `%s` | `%s` |\n", r.old, r.new)
	}
	out.WriteString(idleHead)
	for _, name := range slices.Sorted(maps.Keys(idle)) {
		fmt.Fprintf(&out, "| `%s` | %s |\n", name, idle[name])
	}
	return out.Bytes()
}

func shown(f field) string {
	if f.text() == "" {
		return "none"
	}
	return "`" + f.text() + "`"
}

const documentHead = `# Configuration

Printed from the code; do not edit. ` + "`UPDATE=1 go test ./internal/platform/config`" + ` writes it anew.

No file is needed. A setting is looked for in this order, and the last one found holds: the default, the YAML file
(` + "`--config`" + `, else ` + "`" + FileVariable + "`" + `), the environment, the command line. An empty value counts as unset.
Durations carry a unit, such as ` + "`30s`" + ` or ` + "`10m`" + `. A list in the environment is separated by commas.

A key that does not exist is a fault, and the message names the nearest one that does. A bad configuration stops the
start, and every fault of it is listed. ` + "`paddock config show`" + ` prints what holds, and who said so.
`

const legacyHead = `
## Older names of variables

They work and are reported at the start. The new name wins, and a disagreement is reported too.

| old | new |
| --- | --- |
`

const idleHead = `
## Variables without effect

Known from the system whose names are kept. They are reported at the start.

| variable | why nothing reads it |
| --- | --- |
`
