package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

// object reads a JSON object. Programs differ in what they make of a member
// that is named twice, or in another case than it should be: who checks an image
// may see another one than who runs it. So both are refused, the latter for the
// members that are known.
func object(what string, raw []byte, known ...string) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	broken := func(err error) error {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fault.Wrap(fault.ImageInvalid, err, "its %s is no JSON object", what)
	}
	switch t, err := dec.Token(); {
	case err != nil:
		return nil, broken(err)
	case t != json.Delim('{'):
		return nil, fault.New(fault.ImageInvalid, "its %s is no JSON object", what)
	}
	members := map[string]json.RawMessage{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, broken(err)
		}
		name, ok := t.(string)
		if !ok {
			return nil, broken(io.ErrUnexpectedEOF)
		}
		if err := unambiguous(what, name, members, known); err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, broken(err)
		}
		members[name] = value
	}
	if _, err := dec.Token(); err != nil {
		return nil, broken(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fault.New(fault.ManifestAmbiguous, "its %s is followed by other bytes", what)
	}
	return members, nil
}

func unambiguous(what, name string, members map[string]json.RawMessage, known []string) error {
	if _, twice := members[name]; twice {
		return fault.New(fault.ManifestAmbiguous, "its %s names %.200q twice", what, name)
	}
	for _, k := range known {
		if name != k && strings.EqualFold(name, k) {
			return fault.New(fault.ManifestAmbiguous, "its %s has %.200q for %q", what, name, k)
		}
	}
	return nil
}

// value reads one member; one that is missing or null is the zero value.
func value[T any](what string, members map[string]json.RawMessage, name string) (T, error) {
	var v T
	raw, ok := members[name]
	if !ok {
		return v, nil
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, fault.Wrap(fault.ImageInvalid, err, "its %s: %s", what, name)
	}
	return v, nil
}

// nested reads a member that is an object; one that is missing or null has no
// members.
func nested(what string, members map[string]json.RawMessage, name string, known ...string) (map[string]json.RawMessage, error) {
	raw, ok := members[name]
	if !ok || string(raw) == "null" {
		return nil, nil
	}
	return object(what, raw, known...)
}
