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

// RemoveAll deletes a directory that hostile code has filled and can no longer reach. It may be
// nested deeper than there are descriptors, and closed to its owner. Another server may delete it
// at the same time.
func RemoveAll(ctx context.Context, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return ignoreMissing(err)
	}
	defer root.Close()
	if err := emptyTree(ctx, root); err != nil {
		return err
	}
	return ignoreMissing(os.Remove(dir))
}

// emptyTree removes everything in a directory, at any depth.
func emptyTree(ctx context.Context, root *os.Root) error {
	// Directories move to the top before they are emptied, so that depth costs nothing.
	moveUp := func(sub string) error { return root.Rename(sub, "d-"+rand.Text()) }
	return empty(ctx, root, ".", func(sub string) error {
		if err := empty(ctx, root, sub, moveUp); err != nil {
			return err
		}
		return root.Remove(sub)
	})
}

// empty removes the files in a directory and calls remove for the directories in it, until it is
// empty.
func empty(ctx context.Context, root *os.Root, dir string, remove func(sub string) error) error {
	for {
		entries, err := readSome(root, dir)
		if err != nil || len(entries) == 0 {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if !e.IsDir() {
				err = root.Remove(path)
			} else if err = root.Chmod(path, 0o700); err == nil { // otherwise it cannot be moved
				err = remove(path)
			}
			if ignoreMissing(err) != nil {
				return err
			}
		}
	}
}

// readSome returns some entries of a directory, or none if it is empty. A FIFO that has replaced
// the directory does not block it.
func readSome(root *os.Root, dir string) ([]fs.DirEntry, error) {
	f, err := root.OpenFile(dir, os.O_RDONLY|openFlags, 0)
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
