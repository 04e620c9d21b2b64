package template_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/template"
)

// program is the head of one, of a kind and for a machine.
func program(kind, machine uint16) []byte {
	b := make([]byte, 64)
	copy(b, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(b[16:], kind)
	binary.LittleEndian.PutUint16(b[18:], machine)
	binary.LittleEndian.PutUint32(b[20:], 1)
	binary.LittleEndian.PutUint16(b[52:], 64)
	return b
}

func TestCheckGuest(t *testing.T) {
	const executable, object, amd64, arm64 = 2, 1, 62, 183
	for name, c := range map[string]struct {
		program []byte
		arch    string
		good    bool
	}{
		"amd64":         {program(executable, amd64), "amd64", true},
		"arm64":         {program(executable, arm64), "arm64", true},
		"other machine": {program(executable, arm64), "amd64", false},
		"unknown hosts": {program(executable, amd64), "mips", false},
		"object":        {program(object, amd64), "amd64", false},
		"script":        {[]byte("#!/bin/sh\n"), "amd64", false},
		"cut short":     {program(executable, amd64)[:20], "amd64", false},
		"nothing":       {nil, "amd64", false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := template.CheckGuest(bytes.NewReader(c.program), c.arch); c.good && err != nil || !c.good && !errors.Is(err, fault.InvalidInput) {
				t.Errorf("got %v", err)
			}
		})
	}
}
