package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

const fixRoot = "set SANDBOX_ROOT, or --root, to a directory you may write to"

// makeRoot creates the data directory and tests that it is writable, so that the error names the
// setting and not the first file that fails.
func makeRoot(root string) error {
	err := os.MkdirAll(root, 0o700)
	if err == nil {
		err = tryWrite(root)
	}
	if err != nil {
		return fmt.Errorf("the data directory %s cannot be written to: %w (%s)", root, err, fixRoot)
	}
	return nil
}

// explainDenied adds what to do to the error of a file that only the server's user may read.
func explainDenied(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: run the command as the user of the server", err)
	}
	return err
}

func tryWrite(dir string) error {
	f, err := os.CreateTemp(dir, ".writable-*")
	if err != nil {
		return err
	}
	f.Close()
	return os.Remove(f.Name())
}
