package session

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// removeTree deletes a directory whose content hostile code has made and can no longer reach: it may be nested deeper than
// there are descriptors, and closed to its owner. Directories are moved to the top before they are emptied, so depth costs
// nothing. What another server deletes at the same time is no error.
func removeTree(ctx context.Context, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return ignoreMissing(err)
	}
	defer root.Close()
	for {
		files, dirs, err := batch(root, ".")
		if err != nil {
			return err
		}
		if len(files)+len(dirs) == 0 {
			return ignoreMissing(os.Remove(dir))
		}
		for _, name := range files {
			if err := ignoreMissing(root.Remove(name)); err != nil {
				return err
			}
		}
		for _, name := range dirs {
			if err := ignoreMissing(root.Chmod(name, 0o700)); err != nil {
				return err
			}
			if err := flatten(ctx, root, name); err != nil {
				return err
			}
		}
	}
}

// flatten deletes a directory at the top of root; the directories in it become others at the top.
func flatten(ctx context.Context, root *os.Root, dir string) error {
	for {
		files, dirs, err := batch(root, dir)
		if err != nil {
			return ignoreMissing(err)
		}
		if len(files)+len(dirs) == 0 {
			return ignoreMissing(root.Remove(dir))
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, name := range files {
			if err := ignoreMissing(root.Remove(filepath.Join(dir, name))); err != nil {
				return err
			}
		}
		for _, name := range dirs {
			path := filepath.Join(dir, name)
			if err := ignoreMissing(root.Chmod(path, 0o700)); err != nil { // only what can be written to can be moved
				return err
			}
			if err := ignoreMissing(root.Rename(path, "d-"+rand.Text())); err != nil {
				return err
			}
		}
	}
}

// batch returns some of what is in a directory, the directories among it apart; nothing when it is empty.
func batch(root *os.Root, dir string) (files, dirs []string, err error) {
	f, err := root.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(512)
	if err == io.EOF {
		err = nil
	}
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, e.Name())
		} else {
			files = append(files, e.Name())
		}
	}
	return files, dirs, err
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
