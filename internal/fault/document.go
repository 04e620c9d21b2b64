package fault

import (
	"bytes"
	"fmt"
)

// Classes returns every class, in the order of the documents.
func Classes() []*Class {
	return []*Class{Invalid, Anonymous, Forbidden, NotFound, Conflict, Superseded, Exhausted, Unavailable, Cancelled, Internal}
}

// Document returns docs/faults.md, printed from the tables.
func Document() []byte {
	var out bytes.Buffer
	out.WriteString(documentHead)
	for _, c := range Classes() {
		fmt.Fprintf(&out, "| %s | %d | %d | %d | %d | %s |\n", c.Name, c.HTTP, c.GRPC, c.Ret, c.Exit, yes(c.Retry))
	}
	out.WriteString("\n## Codes\n\n| code | class | HTTP | ret_code | what it means | what to do |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, c := range All() {
		fmt.Fprintf(&out, "| `%s` | %s | %d | %d | %s | %s |\n", c.Name, c.Class.Name, c.Class.HTTP, c.RetCode(), c.Meaning, c.Remedy)
	}
	return out.Bytes()
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

const documentHead = `# Faults

Printed from the code; do not edit. ` + "`UPDATE=1 go test ./internal/fault`" + ` writes it anew.

Every failure has one code, on every face: in the ` + "`error`" + ` of a JSON answer, in the details of a gRPC status, and on
the command line. Programs match the code, never the text. Its class says what a client should do.

## Classes

| class | HTTP | gRPC | ret_code | exit | the same call may succeed later |
| --- | --- | --- | --- | --- | --- |
`
