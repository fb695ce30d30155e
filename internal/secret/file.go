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

// Load returns the secret in the file dir/name, and creates it if it does not exist; made reports
// whether it did. Of processes that start at the same time, one creates the file: it appears
// complete, by a hard link. The directory has mode 0700 and the file 0600.
func Load(dir, name string) (v Value, made bool, err error) {
	path := filepath.Join(dir, name)
	v, err = read(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return v, false, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Value{}, false, fmt.Errorf("create the key directory: %w", err)
	}
	raw := make([]byte, 32)
	rand.Read(raw) // never fails
	text := hex.EncodeToString(raw)

	tmp, err := os.CreateTemp(dir, "."+name+"-*") // mode 0600, O_EXCL
	if err != nil {
		return Value{}, false, fmt.Errorf("create key %s: %w", name, err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(text + "\n")
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return Value{}, false, fmt.Errorf("create key %s: %w", name, err)
	}
	switch err := os.Link(tmp.Name(), path); {
	case err == nil:
		return New(text), true, nil
	case errors.Is(err, fs.ErrExist): // another process created it
		v, err := read(path)
		return v, false, err
	default: // the file system has no links
		return create(path, text)
	}
}

// create writes the file under its own name. A process that reads it before it is complete reports
// it as damaged; starting that process again helps.
func create(path, text string) (Value, bool, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		v, err := read(path)
		return v, false, err
	}
	if err != nil {
		return Value{}, false, fmt.Errorf("create key: %w", err)
	}
	_, err = f.WriteString(text + "\n")
	if err := errors.Join(err, f.Close()); err != nil {
		return Value{}, false, fmt.Errorf("create key: %w", err)
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
		return Value{}, fmt.Errorf("key file %s is damaged (%d characters): delete it to create a new one", path, len(text))
	}
	return New(text), nil
}
