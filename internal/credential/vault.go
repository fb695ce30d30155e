package credential

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"mcp-code-sandbox/internal/store"
)

// ErrWrongKey means that the stored connections were sealed with another root key.
var ErrWrongKey = errors.New("the stored connections were sealed with another key: set JWT_SECRET to the previous key " +
	"(or set JWT_SECRET_PREVIOUS to it, to change keys); if it is lost, delete the connections " +
	"(in state.db with sqlite3, or with psql: DELETE FROM connections; DELETE FROM key_check) and have people connect again")

var errSealed = errors.New("a stored connection is damaged or was moved")

// Vault stores callers' tokens. Each row is sealed with its own key, and that with a key derived
// from the root key. Both are bound to the row's id, caller and service, so that a copied row
// cannot be opened. A Vault is safe for concurrent use, also by several processes on one store.
type Vault struct {
	store *store.Store
	key   wrapKey
	owner string // of leases
	now   func() time.Time
}

// Token is a caller's token for a service.
type Token struct {
	Access  string    `json:"access"`
	Refresh string    `json:"refresh,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
}

// checkText is sealed in the key check.
const checkText = "mcp-code-sandbox connections"

// wrapKey seals the keys of rows.
type wrapKey struct {
	id   string
	aead cipher.AEAD
}

func newWrapKey(root []byte) (wrapKey, error) {
	key, err := hkdf.Key(sha256.New, root, nil, "mcp-code-sandbox credential wrap v1", 32)
	if err != nil {
		return wrapKey{}, err
	}
	id, err := hkdf.Key(sha256.New, root, nil, "mcp-code-sandbox credential key id v1", 8)
	if err != nil {
		return wrapKey{}, err
	}
	aead, err := newAEAD(key)
	return wrapKey{hex.EncodeToString(id), aead}, err
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// NewVault returns the vault in a store. If its rows are sealed with one of the older roots, it
// seals them again with root. If they are sealed with any other root, it returns [ErrWrongKey].
func NewVault(ctx context.Context, st *store.Store, root []byte, older ...[]byte) (*Vault, error) {
	key, err := newWrapKey(root)
	if err != nil {
		return nil, err
	}
	v := &Vault{store: st, key: key, owner: rand.Text(), now: st.Now}
	check := store.KeyCheck{KeyID: key.id, Sealed: key.aead.Seal(nil, nil, []byte(checkText), []byte(key.id))}
	stored, err := st.FirstKeyCheck(ctx, check)
	if err != nil {
		return nil, err
	}
	if key.checks(stored) {
		return v, nil
	}
	for _, r := range older {
		old, err := newWrapKey(r)
		if err != nil {
			return nil, err
		}
		if !old.checks(stored) {
			continue
		}
		err = st.Rekey(ctx, old.id, check, func(c store.Connection) (store.Connection, error) {
			plain, err := old.open(c)
			if err != nil {
				return c, err
			}
			return key.seal(c, plain)
		})
		if err != nil {
			return nil, fmt.Errorf("seal the connections with the new key: %w", err)
		}
		return NewVault(ctx, st, root) // another process may have used another key
	}
	return nil, ErrWrongKey
}

func (k wrapKey) checks(c store.KeyCheck) bool {
	text, err := k.aead.Open(nil, nil, c.Sealed, []byte(c.KeyID))
	return err == nil && c.KeyID == k.id && string(text) == checkText
}

// binding returns the additional data of a row's ciphertexts. Quoting makes it unambiguous.
func binding(part string, c store.Connection) []byte {
	return fmt.Appendf(nil, "connections.%s|%q|%q|%q|%q", part, c.ID, c.Caller, c.Service, c.KeyID)
}

// seal sets the row's ciphertexts, with a new key.
func (k wrapKey) seal(c store.Connection, plain []byte) (store.Connection, error) {
	data := make([]byte, 32)
	rand.Read(data) // never fails
	aead, err := newAEAD(data)
	if err != nil {
		return c, err
	}
	c.KeyID = k.id
	c.Wrapped = k.aead.Seal(nil, nil, data, binding("key", c))
	c.Sealed = aead.Seal(nil, nil, plain, binding("content", c))
	return c, nil
}

func (k wrapKey) open(c store.Connection) ([]byte, error) {
	if c.KeyID != k.id {
		return nil, ErrWrongKey
	}
	data, err := k.aead.Open(nil, nil, c.Wrapped, binding("key", c))
	if err != nil {
		return nil, errSealed
	}
	aead, err := newAEAD(data)
	if err != nil {
		return nil, errSealed
	}
	plain, err := aead.Open(nil, nil, c.Sealed, binding("content", c))
	if err != nil {
		return nil, errSealed
	}
	return plain, nil
}

func (v *Vault) seal(c store.Connection, t Token) (store.Connection, error) {
	plain, err := json.Marshal(t)
	if err != nil {
		return c, err
	}
	c.Updated = v.now()
	return v.key.seal(c, plain)
}

func (v *Vault) open(c store.Connection) (Token, error) {
	plain, err := v.key.open(c)
	if err != nil {
		return Token{}, err
	}
	var t Token
	if err := json.Unmarshal(plain, &t); err != nil {
		return Token{}, errSealed // the error could quote the token
	}
	return t, nil
}

// Put stores a caller's token for a service and replaces an earlier one.
func (v *Vault) Put(ctx context.Context, caller, service string, t Token) error {
	c, err := v.seal(store.Connection{Caller: caller, Service: service, ID: rand.Text()}, t)
	if err != nil {
		return err
	}
	return v.store.PutConnection(ctx, c)
}

// Get returns a caller's token for a service, or [ErrNotConnected].
func (v *Vault) Get(ctx context.Context, caller, service string) (Token, error) {
	c, err := v.store.GetConnection(ctx, caller, service)
	if err != nil {
		return Token{}, notConnected(err)
	}
	return v.open(c)
}

// Delete deletes a caller's token for a service and returns it, or [ErrNotConnected]. It also
// deletes a token that it cannot open.
func (v *Vault) Delete(ctx context.Context, caller, service string) (Token, error) {
	c, err := v.store.DeleteConnection(ctx, caller, service)
	if err != nil {
		return Token{}, notConnected(err)
	}
	return v.open(c)
}

func notConnected(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return ErrNotConnected
	}
	return err
}
