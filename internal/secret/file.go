package secret

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// bytesOfEntropy is 256 bits, the size of the MAC keys they become.
const bytesOfEntropy = 32

// Load returns the secret kept in the file dir/name, and makes it first if it is not there.
// Processes that start at once agree on one: the file appears complete, by a link that only one of them can
// make. dir is created with mode 0700, the file with 0600. made tells whether this call made it.
func Load(dir, name string) (v Value, made bool, err error) {
	path := filepath.Join(dir, name)
	v, err = read(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return v, false, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Value{}, false, fmt.Errorf("make the key directory: %w", err)
	}
	raw := make([]byte, bytesOfEntropy)
	rand.Read(raw) // never fails, see its documentation
	text := hex.EncodeToString(raw)

	tmp, err := os.CreateTemp(dir, "."+name+"-*") // mode 0600, O_EXCL
	if err != nil {
		return Value{}, false, fmt.Errorf("make key %s: %w", name, err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(text + "\n")
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return Value{}, false, fmt.Errorf("make key %s: %w", name, err)
	}
	switch err := os.Link(tmp.Name(), path); {
	case err == nil:
		return New(text), true, nil
	case errors.Is(err, fs.ErrExist): // another process was first
		v, err := read(path)
		return v, false, err
	default: // a file system without links
		return create(path, text)
	}
}

// create writes the file under its own name. A reader may see it before it is complete, and then
// reports it as damaged, which a second start mends.
func create(path, text string) (Value, bool, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		v, err := read(path)
		return v, false, err
	}
	if err != nil {
		return Value{}, false, fmt.Errorf("make key: %w", err)
	}
	_, err = f.WriteString(text + "\n")
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return Value{}, false, fmt.Errorf("make key: %w", err)
	}
	return New(text), true, nil
}

func read(path string) (Value, error) {
	p, err := os.ReadFile(path)
	if err != nil {
		return Value{}, fmt.Errorf("read key: %w", err)
	}
	text := strings.TrimSpace(string(p))
	if len(text) < 16 {
		return Value{}, fmt.Errorf("key file %s is damaged (%d characters): delete it to have a new one made", path, len(text))
	}
	return New(text), nil
}
