package executiontoken

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"

	"mcp-code-sandbox/internal/secret"
)

const (
	rootSize    = 32
	keyIDLength = 8
	// purposePrefix separates this program's keys from those that others derive from the same
	// secret.
	purposePrefix = "mcp-code-sandbox/"
)

// encoding is canonical: no padding and no ignored bits.
var encoding = base64.RawURLEncoding.Strict()

// Root returns the 32-byte root of all keys for the operator's secret (JWT_SECRET), which must have
// at least 32 bytes.
func Root(s secret.Value) ([]byte, error) {
	text := s.Reveal()
	if len(text) < rootSize {
		return nil, fmt.Errorf("the secret has %d bytes but needs at least %d: use for instance the output of `openssl rand -hex 32`",
			len(text), rootSize)
	}
	sum := sha256.Sum256([]byte(text))
	return sum[:], nil
}

// Keys sign and verify tokens of one purpose. They are safe for concurrent use.
type Keys struct {
	all []key // the first signs
}

type key struct {
	id  string
	mac []byte
}

// NewKeys derives the keys of a purpose ("execution token", "access", …) by HKDF-SHA256. The key
// from root signs and verifies; those from older roots only verify. It panics if a root has less
// than 32 bytes.
func NewKeys(root []byte, purpose string, older ...[]byte) *Keys {
	k := &Keys{}
	for _, r := range append([][]byte{root}, older...) {
		k.all = append(k.all, derive(r, purpose))
	}
	return k
}

func derive(root []byte, purpose string) key {
	if len(root) < rootSize {
		panic("executiontoken: the root key is too short")
	}
	k, err := hkdf.Key(sha256.New, root, nil, purposePrefix+purpose, sha256.Size)
	if err != nil {
		panic(err) // only for invalid lengths
	}
	return key{id: hex.EncodeToString(sum(k, "kid"))[:keyIDLength], mac: k}
}

func sum(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// Seal returns prefix.<key id>.<base64url(payload)>.<base64url(MAC)>. The payload is signed but not
// encrypted. prefix must not contain a dot.
func (k *Keys) Seal(prefix string, payload []byte) string {
	if strings.Contains(prefix, ".") {
		panic("executiontoken: a dot in the prefix " + prefix)
	}
	signing := k.all[0]
	text := prefix + "." + signing.id + "." + encoding.EncodeToString(payload)
	return text + "." + encoding.EncodeToString(sum(signing.mac, text))
}

// Open returns the payload of a token that Seal made with the same prefix and one of these keys. It
// checks the MAC in constant time before it decodes the payload. Its errors are [ErrMalformed] and
// [ErrSignature].
func (k *Keys) Open(prefix, token string) ([]byte, error) {
	if len(token) > MaxSize {
		return nil, ErrMalformed
	}
	parts := strings.Split(token, ".")
	if len(parts) != 4 || parts[0] != prefix {
		return nil, ErrMalformed
	}
	mac, err := decode(parts[3])
	if err != nil || len(mac) != sha256.Size {
		return nil, ErrMalformed
	}
	text := token[:strings.LastIndexByte(token, '.')]
	for _, key := range k.all {
		if key.id == parts[1] && hmac.Equal(sum(key.mac, text), mac) {
			return decode(parts[2])
		}
	}
	return nil, ErrSignature
}

// decode refuses the line breaks that package base64 ignores.
func decode(s string) ([]byte, error) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, ErrMalformed
	}
	p, err := encoding.DecodeString(s)
	if err != nil {
		return nil, ErrMalformed
	}
	return p, nil
}
