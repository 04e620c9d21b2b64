package config

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
)

// YAML prints the configuration in the form of a file, with the source of
// each value beside it. A secret is hidden, and its line is a comment, so that
// the whole reads back as a file and never as the word for hidden.
func (l *Loaded) YAML() ([]byte, error) {
	var out bytes.Buffer
	var open []string // sections that the last line stood in
	for _, f := range fieldsOf(&l.Config) {
		path := strings.Split(f.key, ".")
		sections, name := path[:len(path)-1], path[len(path)-1]
		for i, s := range sections {
			if i >= len(open) || open[i] != s {
				fmt.Fprintf(&out, "%s%s:\n", indent(i), s)
				open = append(open[:i:i], s)
			}
		}
		open = open[:len(sections)]
		value, err := f.yaml()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.key, err)
		}
		mark := ""
		if f.secret() {
			mark = "# "
		}
		fmt.Fprintf(&out, "%s%s%s: %s # %s\n", indent(len(sections)), mark, name, value, l.Source(f.key))
	}
	return out.Bytes(), nil
}

// Setting is one value and who gave it.
type Setting struct {
	Key string `json:"key"`
	// Value is text, a number, true or false, or a list of texts. A duration is
	// text with its unit, a secret is hidden.
	Value  any    `json:"value"`
	Source string `json:"source"`   // see Loaded.Source
	Env    string `json:"variable"` // the variable of the environment that sets it
}

// Settings returns every setting, in the order of the file.
func (l *Loaded) Settings() []Setting {
	var all []Setting
	for _, f := range fieldsOf(&l.Config) {
		all = append(all, Setting{f.key, f.plain(), l.Source(f.key), f.env})
	}
	return all
}

// plain returns the value for a program that knows no types of ours.
func (f field) plain() any {
	switch v := f.value.Interface().(type) {
	case bool, int, float64, []string:
		return v
	}
	return f.text()
}

func indent(depth int) string { return strings.Repeat("  ", depth) }

// Source says who gave the value of key: default, derived, command line, a
// line of the file, or a variable of the environment.
func (l *Loaded) Source(key string) string {
	if s := l.from[key]; s != "" {
		return s
	}
	return "default"
}

// yaml returns the value on one line.
func (f field) yaml() (string, error) {
	var v any = f.text()
	switch {
	case f.list():
		v = f.value.Interface()
	case f.value.CanInt() && f.value.Type().Name() == "int", f.value.CanFloat():
		return f.text(), nil
	case f.text() == "true" || f.text() == "false":
		return f.text(), nil
	}
	b, err := yaml.MarshalWithOptions(v, yaml.Flow(true), yaml.JSON())
	return strings.TrimSpace(string(b)), err
}
