package runner

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// stamp is left in an environment by Install. It saves Detect from starting interpreters.
type stamp struct {
	Lock        string      `json:"lock"` // hash of the files that the environment was made of
	Complete    bool        `json:"complete"`
	Interpreter interpreter `json:"interpreter"`
}

const stampName = "stamp.json"

func readStamp(dir, env string) (stamp, error) {
	var s stamp
	b, err := os.ReadFile(filepath.Join(dir, env, stampName))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(b, &s)
}

func (s stamp) write(dir string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, stampName), append(b, '\n'), 0o644)
}

// lockHash identifies what an environment is made of: everything in its directory of definitions.
func lockHash(files fs.FS, env string) (string, error) {
	h := sha256.New()
	err := fs.WalkDir(files, env, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "runner.json" || d.Name() == "driver.py" || d.Name() == "zygote.py" { // those are not installed
			return err
		}
		b, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(h, "%s %d\n%s", path, len(b), b)
		return err
	})
	return hex.EncodeToString(h.Sum(nil)), err
}

// copyFiles writes definition files of an environment into dir.
func copyFiles(files fs.FS, env, dir string, names ...string) error {
	for _, name := range names {
		b, err := fs.ReadFile(files, env+"/"+name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// makeReadable lets everybody read a tree, whatever the umask was: the sandbox's user is not ours.
func makeReadable(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		mode := fi.Mode().Perm() | 0o444
		if d.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		if mode == fi.Mode().Perm() {
			return nil
		}
		return os.Chmod(path, mode)
	})
}

// replace puts a finished staging directory into its place.
func replace(staging, target string) error {
	old := staging + "-old"
	if err := os.Rename(target, old); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := os.Rename(staging, target); err != nil {
		return err
	}
	return os.RemoveAll(old)
}
