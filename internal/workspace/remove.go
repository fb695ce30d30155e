package workspace

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// RemoveAll deletes a directory whose content hostile code has made and can no longer reach. It may
// be nested deeper than there are descriptors, and closed to its owner. Another server may delete
// it at the same time.
func RemoveAll(ctx context.Context, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return ignoreMissing(err)
	}
	defer root.Close()
	for {
		entries, err := readSome(root, ".")
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return ignoreMissing(os.Remove(dir))
		}
		for _, e := range entries {
			if e.IsDir() {
				if err = ignoreMissing(root.Chmod(e.Name(), 0o700)); err == nil {
					err = flatten(ctx, root, e.Name())
				}
			} else {
				err = ignoreMissing(root.Remove(e.Name()))
			}
			if err != nil {
				return err
			}
		}
	}
}

// flatten deletes a directory at the top of root. It moves the directories in it to the top, so
// that depth costs nothing.
func flatten(ctx context.Context, root *os.Root, dir string) error {
	for {
		entries, err := readSome(root, dir)
		if err != nil {
			return ignoreMissing(err)
		}
		if len(entries) == 0 {
			return ignoreMissing(root.Remove(dir))
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if e.IsDir() {
				if err = ignoreMissing(root.Chmod(path, 0o700)); err == nil { // otherwise it cannot be moved
					err = ignoreMissing(root.Rename(path, "d-"+rand.Text()))
				}
			} else {
				err = ignoreMissing(root.Remove(path))
			}
			if err != nil {
				return err
			}
		}
	}
}

// readSome returns some entries of a directory, or none if it is empty.
func readSome(root *os.Root, dir string) ([]fs.DirEntry, error) {
	f, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(512)
	if err == io.EOF {
		err = nil
	}
	return entries, err
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
