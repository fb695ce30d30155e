// Package secret has a type for values that must never be shown, and the key files of an
// installation. It does not know what the secrets are for.
package secret

import (
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// Value is a secret. Printed, logged or marshaled, it is "[redacted]"; only Reveal returns the
// text. The zero Value is not set.
type Value struct{ text string }

// New returns text as a Value.
func New(text string) Value { return Value{text} }

// Reveal returns the secret. Review its callers.
func (v Value) Reveal() string { return v.text }

// IsZero reports whether no secret is set.
func (v Value) IsZero() bool { return v.text == "" }

// Format redacts under every verb, %#v and %d included.
func (v Value) Format(s fmt.State, _ rune) { fmt.Fprint(s, v.String()) }

func (v Value) String() string {
	if v.text == "" {
		return ""
	}
	return redacted
}

// GoString implements fmt.GoStringer.
func (v Value) GoString() string { return v.String() }

// LogValue implements slog.LogValuer.
func (v Value) LogValue() slog.Value { return slog.StringValue(v.String()) }

// MarshalText implements encoding.TextMarshaler, for JSON and XML.
func (v Value) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler, for settings.
func (v *Value) UnmarshalText(p []byte) error {
	v.text = string(p)
	return nil
}
