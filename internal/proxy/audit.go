package proxy

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Events of the audit trail.
const (
	EventIssued   = "token_issued"
	EventRevoked  = "token_revoked"
	EventIntent   = "request"  // written before anything is sent to the service
	EventComplete = "response" // how it ended
	EventDenied   = "denied"
)

// Record is one line of the audit trail. It never holds headers, bodies, tokens or values of a query.
type Record struct {
	Seq       uint64    `json:"seq"`
	Time      time.Time `json:"time"`
	Event     string    `json:"event"`
	Caller    string    `json:"caller,omitempty"`
	User      string    `json:"user,omitempty"`
	Execution string    `json:"execution_id,omitempty"`
	JTI       string    `json:"jti,omitempty"`
	Service   string    `json:"service,omitempty"`
	Method    string    `json:"method,omitempty"`
	Path      string    `json:"path,omitempty"`
	Query     []string  `json:"query,omitempty"` // keys alone
	Decision  string    `json:"decision,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	Status    int       `json:"status,omitempty"`
	Sent      int64     `json:"bytes_sent,omitempty"`     // to the service
	Received  int64     `json:"bytes_received,omitempty"` // from it, as passed on
	Duration  float64   `json:"duration_ms,omitempty"`
	Prev      string    `json:"prev"` // the hash of the line before
}

// Each line ends with the hash of the line before it and of the line itself up to there.
const (
	hashField  = `,"hash":"`
	hashEnd    = "\"}\n"
	hashDigits = 2 * sha256.Size
)

// genesis is what the first line of all has in place of a hash.
var genesis = hex.EncodeToString(make([]byte, sha256.Size))

// maxLine bounds a line: hostile paths and query keys are cut before.
const maxLine = 32 << 10

// Audit appends to the audit trail: JSON lines, each with the hash of the one before. Several processes may share the file; they take
// turns by a lock on it. A file that was moved away is followed by a new one that goes on with the chain.
type Audit struct {
	path string
	now  func() time.Time

	mu   sync.Mutex
	f    *os.File
	size int64 // the file's, as this process last saw it
	seq  uint64
	hash string
}

// OpenAudit opens the trail at path, or begins it.
func OpenAudit(path string) (*Audit, error) {
	a := &Audit{path: path, now: time.Now, hash: genesis, size: -1}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("opening the audit trail: %w", err)
	}
	if err := a.open(); err != nil {
		return nil, fmt.Errorf("opening the audit trail: %w", err)
	}
	if err := a.locked(a.catchUp); err != nil {
		a.f.Close()
		return nil, fmt.Errorf("reading the audit trail %s: %w", path, err)
	}
	return a, nil
}

// Close closes the file. Nothing can be appended afterwards.
func (a *Audit) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.f.Close()
}

func (a *Audit) open() error {
	f, err := os.OpenFile(a.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if a.f != nil {
		a.f.Close()
	}
	a.f, a.size = f, -1
	return nil
}

// append writes a line. When it returns an error, nothing was written.
func (a *Audit) append(r Record) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.follow(); err != nil {
		return fmt.Errorf("audit trail: %w", err)
	}
	err := a.locked(func() error {
		if err := a.catchUp(); err != nil {
			return err
		}
		r.Seq, r.Prev, r.Time = a.seq+1, a.hash, a.now().UTC()
		line, hash, err := seal(r)
		if err != nil {
			return err
		}
		if _, err := a.f.Write(line); err != nil {
			if terr := a.f.Truncate(a.size); terr != nil { // a full disk takes part of a line
				a.size = -1
			}
			return err
		}
		a.seq, a.hash, a.size = r.Seq, hash, a.size+int64(len(line))
		return nil
	})
	if err != nil {
		return fmt.Errorf("audit trail: %w", err)
	}
	return nil
}

// follow opens the file anew if what is at the path is another one, or nothing.
func (a *Audit) follow() error {
	here, err := a.f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(a.path)
	switch {
	case err == nil && os.SameFile(here, there):
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := a.locked(a.catchUp); err != nil { // others may have written the old one's last lines
		return err
	}
	return a.open()
}

// locked calls f while no other process appends.
func (a *Audit) locked(f func() error) error {
	if err := lockFile(a.f); err != nil {
		return err
	}
	defer unlockFile(a.f)
	return f()
}

// catchUp reads the last line, if another process has appended since, and removes what a crash left of an unfinished one: it was
// never acted upon.
func (a *Audit) catchUp() error {
	fi, err := a.f.Stat()
	if err != nil || fi.Size() == a.size {
		return err
	}
	tail := make([]byte, min(fi.Size(), 2*maxLine))
	if _, err := a.f.ReadAt(tail, fi.Size()-int64(len(tail))); err != nil && err != io.EOF {
		return err
	}
	end := bytes.LastIndexByte(tail, '\n') + 1
	size := fi.Size() - int64(len(tail)) + int64(end)
	if end == 0 && fi.Size() > int64(len(tail)) {
		return errors.New("its last line is longer than any of this program's: move the file away")
	}
	if size < fi.Size() {
		if err := a.f.Truncate(size); err != nil {
			return err
		}
	}
	if end > 0 {
		line := tail[bytes.LastIndexByte(tail[:end-1], '\n')+1 : end]
		r, hash, err := unseal(line)
		if err != nil {
			return fmt.Errorf("its last line: %w; move the file away", err)
		}
		a.seq, a.hash = r.Seq, hash
	}
	a.size = size
	return nil
}

// seal returns the line of r and its hash.
func seal(r Record) (line []byte, hash string, err error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, "", err
	}
	body = body[:len(body)-1] // the hash goes before the brace
	if len(body) > maxLine-hashDigits-len(hashField)-len(hashEnd) {
		return nil, "", errors.New("the line is too long")
	}
	hash = lineHash(body)
	line = append(body, hashField...)
	line = append(line, hash...)
	return append(line, hashEnd...), hash, nil
}

// lineHash needs no more than the line: it holds the hash of the one before.
func lineHash(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

func unseal(line []byte) (Record, string, error) {
	cut := len(line) - len(hashField) - hashDigits - len(hashEnd)
	if cut <= 0 || string(line[cut:cut+len(hashField)]) != hashField || !bytes.HasSuffix(line, []byte(hashEnd)) {
		return Record{}, "", errors.New("it has no hash")
	}
	hash := string(line[cut+len(hashField) : len(line)-len(hashEnd)])
	if lineHash(line[:cut]) != hash {
		return Record{}, "", errors.New("it does not match its hash")
	}
	var r Record
	if err := json.Unmarshal(append(bytes.Clone(line[:cut]), '}'), &r); err != nil {
		return Record{}, "", err
	}
	return r, hash, nil
}

// VerifyAudit checks a trail: every line's hash, and that it continues the one before. It returns the last line's number and hash. The chain
// shows what was changed, removed or inserted before a hash that somebody has noted elsewhere.
func VerifyAudit(r io.Reader) (seq uint64, hash string, err error) {
	b := bufio.NewReaderSize(r, maxLine)
	for n := 1; ; n++ {
		line, err := b.ReadSlice('\n')
		if err == io.EOF && len(line) == 0 {
			return seq, hash, nil
		}
		if err != nil {
			return seq, hash, fmt.Errorf("line %d: it is incomplete or too long", n)
		}
		record, own, err := unseal(line)
		switch {
		case err != nil:
			return seq, hash, fmt.Errorf("line %d: %w", n, err)
		case n > 1 && (record.Prev != hash || record.Seq != seq+1):
			return seq, hash, fmt.Errorf("line %d does not continue the one before", n)
		case n == 1 && (record.Seq == 1) != (record.Prev == genesis):
			return seq, hash, errors.New("line 1 is not the beginning of a trail")
		}
		seq, hash = record.Seq, own
	}
}
