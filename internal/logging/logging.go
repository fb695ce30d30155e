// Package logging makes the program's logger: lines for people or JSON, to stderr and a rotated
// file.
//
// It formats records. Its callers leave out code, file contents, environment values, tokens, bodies
// and the query of signed links. Secrets have the type secret.Value, which redacts itself.
package logging

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"gopkg.in/natefinch/lumberjack.v2"
)

// Config configures a logger.
type Config struct {
	Level slog.Level
	JSON  bool      // one JSON object per line; otherwise console lines
	Out   io.Writer // stderr
	File  string    // a second output, which is rotated; empty: none
}

// Rotation of the file: at most about 60 MB in total.
const (
	fileMegabytes = 10
	fileBackups   = 5
)

// New returns the logger and the Closer of its file. If the file cannot be opened, New only
// warns: a full disk must not keep code from running.
func New(cfg Config) (*slog.Logger, io.Closer) {
	out := handler(cfg.Out, cfg)
	if cfg.File == "" {
		return slog.New(out), io.NopCloser(nil)
	}
	if err := tryFile(cfg.File); err != nil {
		log := slog.New(out)
		log.Warn("the log file cannot be written; logging to stderr only", "file", cfg.File, "error", err,
			"fix", "set SANDBOX_LOG_FILE to a writable path, or to none")
		return log, io.NopCloser(nil)
	}
	file := &lumberjack.Logger{Filename: cfg.File, MaxSize: fileMegabytes, MaxBackups: fileBackups}
	return slog.New(slog.NewMultiHandler(out, handler(file, cfg))), file
}

func handler(w io.Writer, cfg Config) slog.Handler {
	if cfg.JSON {
		return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: cfg.Level})
	}
	return newConsole(w, cfg.Level)
}

// tryFile checks that the file can be written. lumberjack opens it only at the first line.
func tryFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil {
		return err
	} else if !fi.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", path)
	}
	return nil
}
