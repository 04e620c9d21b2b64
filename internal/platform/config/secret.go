package config

import (
	"fmt"
	"io"
	"log/slog"
)

// hidden stands where a secret would.
const hidden = "(hidden)"

// Secret is a value that must never be shown. Use Reveal where it is needed.
type Secret string

// String hides the value.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// Format hides the value under every verb; %d would show it otherwise, as the
// text of a mistake.
func (s Secret) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, s.String()) }

// GoString hides the value.
func (s Secret) GoString() string { return s.String() }

// LogValue hides the value.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the value.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes the value from a file or the environment.
func (s *Secret) UnmarshalText(b []byte) error { *s = Secret(b); return nil }

// Reveal returns the value.
func (s Secret) Reveal() string { return string(s) }
