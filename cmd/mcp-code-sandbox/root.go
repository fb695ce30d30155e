package main

import (
	"fmt"
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

func tryWrite(dir string) error {
	f, err := os.CreateTemp(dir, ".writable-*")
	if err != nil {
		return err
	}
	f.Close()
	return os.Remove(f.Name())
}
