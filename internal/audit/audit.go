// Package audit writes the audit trail: a file of JSON lines that form a hash chain, which several
// processes can share. Every room of the door writes a line before it sends anything outside.
//
// It knows nothing of what it records.
package audit

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

	"mcp-code-sandbox/internal/filelock"
)

// Events of the audit trail.
const (
	EventIssued   = "token_issued"
	EventRevoked  = "token_revoked"
	EventIntent   = "request"  // written before anything is sent outside
	EventComplete = "response" // written when the call or connection has ended
	EventDenied   = "denied"
	EventFile     = "file" // a file of a package, before it is sent to a sandbox
)

// Record is one line of the audit trail. It never contains headers, bodies, tokens or query values.
type Record struct {
	Seq       uint64    `json:"seq"`
	Time      time.Time `json:"time"`
	Event     string    `json:"event"`
	Caller    string    `json:"caller,omitempty"`
	User      string    `json:"user,omitempty"`
	Execution string    `json:"execution_id,omitempty"`
	JTI       string    `json:"jti,omitempty"`
	Room      string    `json:"room,omitempty"` // of the door; empty: the execution proxy
	Service   string    `json:"service,omitempty"`
	Host      string    `json:"host,omitempty"` // and port
	Method    string    `json:"method,omitempty"`
	Path      string    `json:"path,omitempty"`
	Query     []string  `json:"query,omitempty"` // keys only
	Decision  string    `json:"decision,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	Digest    string    `json:"digest,omitempty"` // of a file: sha256, or sha512 for npm
	Status    int       `json:"status,omitempty"`
	Sent      int64     `json:"bytes_sent,omitempty"`     // outside
	Received  int64     `json:"bytes_received,omitempty"` // from there, as forwarded
	Duration  float64   `json:"duration_ms,omitempty"`
	Prev      string    `json:"prev"` // the hash of the previous line
}

// Each line ends with its hash, which covers the hash of the previous line.
const (
	hashField  = `,"hash":"`
	hashEnd    = "\"}\n"
	hashDigits = 2 * sha256.Size
)

// genesis is the Prev of the first record.
var genesis = hex.EncodeToString(make([]byte, sha256.Size))

// maxLine bounds a line. A longer record is an error; callers clip what clients choose.
const maxLine = 32 << 10

// Trail appends to the audit trail. Processes that share the file lock another file next to it,
// which also holds a checkpoint, the end of the chain. If the trail is moved away, a new file
// continues the chain. The methods are safe for concurrent use.
type Trail struct {
	path string
	now  func() time.Time

	mu         sync.Mutex
	checkpoint *os.File // locked while a process appends; nil until the first record
	f          *os.File // the trail
	size       int64    // of f, when this process last used it; -1: unknown
	seq        uint64
	hash       string
}

// Open opens the trail at path. If it does not exist, the first record creates it.
func Open(path string) (*Trail, error) {
	a := &Trail{path: path, now: time.Now, hash: genesis}
	for _, name := range []string{path, checkpointPath(path)} {
		if _, err := os.Lstat(name); err == nil {
			return a, a.open()
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("open the audit trail: %w", err)
		}
	}
	return a, nil
}

// open opens the files and finds the end of the chain.
func (a *Trail) open() error {
	if err := os.MkdirAll(filepath.Dir(a.path), 0o700); err != nil {
		return fmt.Errorf("open the audit trail: %w", err)
	}
	checkpoint, err := os.OpenFile(checkpointPath(a.path), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open the audit trail: %w", err)
	}
	a.checkpoint = checkpoint
	if err := a.locked(a.catchUp); err != nil {
		_ = a.close()
		return fmt.Errorf("read the audit trail %s: %w", a.path, err)
	}
	return nil
}

func checkpointPath(path string) string { return path + ".turn" }

// Close closes the files.
func (a *Trail) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.close()
}

func (a *Trail) close() error {
	var err error
	for _, f := range []*os.File{a.checkpoint, a.f} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	a.checkpoint, a.f = nil, nil
	return err
}

// Append writes a record. On error, nothing was written.
func (a *Trail) Append(r Record) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.checkpoint == nil {
		if err := a.open(); err != nil {
			return err
		}
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
			if terr := a.f.Truncate(a.size); terr != nil { // a full disk may hold part of the line
				a.size = -1
			}
			return err
		}
		a.seq, a.hash, a.size = r.Seq, hash, a.size+int64(len(line))
		// The trail has the same information, so an error does not matter.
		_, _ = a.checkpoint.WriteAt(fmt.Appendf(nil, checkpointFormat, a.seq, a.hash), 0)
		return nil
	})
	if err != nil {
		return fmt.Errorf("audit trail: %w", err)
	}
	return nil
}

// locked calls f while no other process appends.
func (a *Trail) locked(f func() error) error {
	if err := filelock.Lock(a.checkpoint); err != nil {
		return err
	}
	defer filelock.Unlock(a.checkpoint)
	return f()
}

// catchUp finds the end of the chain if another process appended or the file was moved. It removes
// an incomplete last line that a crash left: nothing was done for it.
func (a *Trail) catchUp() error {
	if err := a.reopen(); err != nil {
		return err
	}
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
		return errors.New("the last line is too long: move the file away")
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
			return fmt.Errorf("the last line: %w; move the file away", err)
		}
		a.seq, a.hash = r.Seq, hash
	}
	// Continue from the checkpoint if the trail ends before it, or in another record: the next
	// record then shows for good that the trail was cut or changed.
	if seq, hash, ok := readCheckpoint(a.checkpoint); ok && seq >= a.seq {
		a.seq, a.hash = seq, hash
	}
	a.size = size
	return nil
}

// reopen opens the file at the path, unless it is open already.
func (a *Trail) reopen() error {
	if a.f != nil {
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
	}
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

// checkpointFormat has a fixed length, so that each checkpoint overwrites the previous one.
const checkpointFormat = "%020d %64s\n"

func readCheckpoint(f io.ReaderAt) (seq uint64, hash string, ok bool) {
	text := make([]byte, len(fmt.Sprintf(checkpointFormat, 0, genesis)))
	if _, err := f.ReadAt(text, 0); err != nil {
		return 0, "", false // not written yet
	}
	_, err := fmt.Sscanf(string(text), checkpointFormat, &seq, &hash)
	return seq, hash, err == nil && len(hash) == hashDigits
}

// seal returns the line for r and its hash.
func seal(r Record) (line []byte, hash string, err error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, "", err
	}
	body = body[:len(body)-1] // the hash goes before the brace
	if len(body) > maxLine-hashDigits-len(hashField)-len(hashEnd) {
		return nil, "", errors.New("the record is too long")
	}
	hash = lineHash(body)
	line = append(body, hashField...)
	line = append(line, hash...)
	return append(line, hashEnd...), hash, nil
}

// lineHash hashes a line, which contains the hash of the previous one.
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

// VerifyFile verifies the trail at path and compares its end with the checkpoint. Only the
// checkpoint shows that records were removed at the end, or that the last one was replaced.
func VerifyFile(path string) (Verified, error) {
	last, want := uint64(0), ""
	if f, err := os.Open(checkpointPath(path)); err == nil { // missing for a trail that was moved away
		last, want, _ = readCheckpoint(f) // before the trail, which a server may be writing
		_ = f.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Verified{}, err
	}
	f, err := os.Open(path)
	if err != nil {
		return Verified{}, err
	}
	defer f.Close()
	v, err := verify(f)
	switch {
	case err != nil:
	case v.Last == 0 && last > 0:
		err = fmt.Errorf("it is empty, but %d records were written; if it was just moved away, the next record continues it", last)
	case v.Last < last:
		err = fmt.Errorf("records %d to %d are missing at its end", v.Last+1, last)
	case v.Last == last && want != "" && v.Hash != want:
		err = fmt.Errorf("record %d was replaced", v.Last)
	}
	return v, err
}

// Verified is what a verified audit trail contains. If First is above 1, another file has the
// records before it, or they were removed.
type Verified struct {
	First, Last uint64 // numbers of records; 0: it is empty
	Hash        string // of the last record
}

// verify verifies each line's hash and that each line continues the previous one. Compare
// the last hash with one that was saved elsewhere: the chain proves that nothing before it was
// changed, removed or inserted.
func verify(r io.Reader) (v Verified, err error) {
	b := bufio.NewReaderSize(r, maxLine)
	for n := 1; ; n++ {
		line, err := b.ReadSlice('\n')
		if err == io.EOF && len(line) == 0 {
			return v, nil
		}
		if err != nil {
			return v, fmt.Errorf("line %d is incomplete or too long", n)
		}
		record, own, err := unseal(line)
		switch {
		case err != nil:
			return v, fmt.Errorf("line %d: %w", n, err)
		case n > 1 && (record.Prev != v.Hash || record.Seq != v.Last+1):
			return v, fmt.Errorf("line %d does not continue the previous one", n)
		case n == 1 && (record.Seq == 1) != (record.Prev == genesis):
			return v, errors.New("line 1 is not the start of a trail")
		}
		if n == 1 {
			v.First = record.Seq
		}
		v.Last, v.Hash = record.Seq, own
	}
}
