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

// Audit appends to the audit trail: JSON lines, each with the hash of the one before. Several processes may share the file. They take
// turns by a lock on another one beside it, in which is noted how far the chain has come: a trail that was moved away, however often, is
// followed by a new file that goes on with it.
type Audit struct {
	path string
	now  func() time.Time

	mu   sync.Mutex
	turn *os.File // locked while one appends
	f    *os.File // the trail
	size int64    // the file's, as this process last saw it
	seq  uint64
	hash string
}

// OpenAudit opens the trail at path, or begins it.
func OpenAudit(path string) (*Audit, error) {
	a := &Audit{path: path, now: time.Now, hash: genesis}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("opening the audit trail: %w", err)
	}
	var err error
	if a.turn, err = os.OpenFile(path+".turn", os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, fmt.Errorf("opening the audit trail: %w", err)
	}
	if err := a.locked(a.catchUp); err != nil {
		_ = a.Close()
		return nil, fmt.Errorf("reading the audit trail %s: %w", path, err)
	}
	return a, nil
}

// Close closes the files. Nothing can be appended afterwards.
func (a *Audit) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := a.turn.Close()
	if a.f != nil {
		err = errors.Join(err, a.f.Close())
	}
	return err
}

// append writes a line. When it returns an error, nothing was written.
func (a *Audit) append(r Record) error {
	a.mu.Lock()
	defer a.mu.Unlock()
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
		_ = a.note() // the line itself says the same, for as long as it is there
		return nil
	})
	if err != nil {
		return fmt.Errorf("audit trail: %w", err)
	}
	return nil
}

// follow opens the file at the path, unless it is the one that is open.
func (a *Audit) follow() error {
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

// noteFormat has one length, so that each note takes the place of the one before.
const noteFormat = "%020d %64s\n"

// note writes down how far the chain has come.
func (a *Audit) note() error {
	_, err := a.turn.WriteAt(fmt.Appendf(nil, noteFormat, a.seq, a.hash), 0)
	return err
}

// noted takes over what was written down last, unless the trail is further. A trail that was cut short, or whose end was
// written anew, is so followed by a line that does not continue it, which shows for good.
func (a *Audit) noted() {
	if seq, hash, ok := readNote(a.turn); ok && seq >= a.seq {
		a.seq, a.hash = seq, hash
	}
}

func readNote(turn io.ReaderAt) (seq uint64, hash string, ok bool) {
	text := make([]byte, len(fmt.Sprintf(noteFormat, 0, genesis)))
	if _, err := turn.ReadAt(text, 0); err != nil {
		return 0, "", false // nothing was, yet
	}
	_, err := fmt.Sscanf(string(text), noteFormat, &seq, &hash)
	return seq, hash, err == nil && len(hash) == hashDigits
}

// VerifyAuditFile is VerifyAudit for the trail at path. It also compares its end with what the server noted beside it when it last
// wrote: the chain alone cannot show that lines were removed from the end, or that the last one was written anew.
func VerifyAuditFile(path string) (seq uint64, hash string, err error) {
	noted, want := uint64(0), ""
	if turn, err := os.Open(path + ".turn"); err == nil { // a trail that was moved away has none
		noted, want, _ = readNote(turn) // before the trail is read: a server may be writing
		_ = turn.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return 0, "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	seq, hash, err = VerifyAudit(f)
	switch {
	case err != nil:
	case seq == 0 && noted > 0:
		err = fmt.Errorf("it is empty, but %d records were written; if it was just moved away, the next record continues it", noted)
	case seq < noted:
		err = fmt.Errorf("records %d to %d are missing at its end", seq+1, noted)
	case seq == noted && want != "" && hash != want:
		err = fmt.Errorf("record %d is not the one that was written", seq)
	}
	return seq, hash, err
}

// locked calls f while no other process appends.
func (a *Audit) locked(f func() error) error {
	if err := lockFile(a.turn); err != nil {
		return err
	}
	defer unlockFile(a.turn)
	return f()
}

// catchUp finds the end of the chain: it reads the last line, if another process has appended since, and removes what a crash left of an unfinished one: it was
// never acted upon.
func (a *Audit) catchUp() error {
	if err := a.follow(); err != nil {
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
	a.noted()
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
