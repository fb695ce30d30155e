package executor

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/share"
	"mcp-code-sandbox/internal/wire"
)

// wantReleased checks that no memory is held after lingering runs are forgotten.
func (r *rig) wantReleased(t *testing.T) {
	t.Helper()
	r.runs.mu.Lock()
	lingering := slices.Clone(r.runs.lingering)
	r.runs.mu.Unlock()
	for _, run := range lingering {
		r.runs.forget(run)
	}
	if s := r.Executor.memory.Stats(); s.Used != 0 || s.Callers != 0 || s.Waiting != 0 {
		t.Errorf("after all runs: %+v", s)
	}
}

// TestDisplaysAreShared: one caller's displays fill the memory. Another caller's displays are kept,
// and those of the first one make room.
func TestDisplaysAreShared(t *testing.T) {
	const size = 4 << 20
	full, end := make(chan struct{}, 2), make(chan struct{})
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		n := 1
		if string(p.Code) == "hostile" {
			n = 4
		}
		for i := range n {
			p.Display("text/html", bytes.Repeat([]byte{byte('a' + i)}, size))
		}
		if n > 1 {
			p.Stdout([]byte("shown"))
			full <- struct{}{}
			<-end
		}
		return wire.Exit{}
	}, func(c *Config) { c.ResultMemory = 32 << 20 })
	var results [2]Result
	var done sync.WaitGroup
	printed := make(chan struct{}, 2) // the server has seen all that came before
	for i := range results {
		done.Go(func() {
			var err error
			if results[i], err = r.Run(t.Context(), mallory, Request{Session: "m", Runner: "python", Code: "hostile",
				Output: func(Stream, []byte) { printed <- struct{}{} }}); err != nil {
				t.Error(err)
			}
		})
	}
	for range results {
		<-full
		<-printed
	}
	if held := r.Executor.memory.Held(mallory.ID); held < 24<<20 {
		t.Fatalf("the first caller holds %d", held)
	}
	res, err := r.Run(t.Context(), ann, Request{Session: "a", Runner: "python", Code: "x"})
	if err != nil || len(res.Displays) != 1 || res.Dropped() != 0 {
		t.Fatalf("%v, %d displays, %d dropped", err, len(res.Displays), res.Dropped())
	}
	if data, _ := res.Displays[0].Content(); len(data) != size {
		t.Errorf("her display has %d bytes", len(data))
	}
	close(end)
	done.Wait()
	dropped, kept := 0, 0
	for _, res := range results {
		dropped += res.Dropped()
		for _, d := range res.Displays {
			if data, _ := d.Content(); len(data) == size {
				kept++
			}
		}
	}
	if dropped == 0 || kept == 0 || dropped+kept != 8 {
		t.Errorf("%d of his displays are dropped, %d kept", dropped, kept)
	}
	r.wantReleased(t)
}

// TestOutputIsShared: output counts, is cut for a caller that holds less, and the omitted bytes are
// counted exactly.
func TestOutputIsShared(t *testing.T) {
	const printed = 1 << 20
	end := make(chan struct{})
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		if string(p.Code) != "hostile" {
			p.Stdout(make([]byte, 100<<10))
			return wire.Exit{}
		}
		p.Stdout(make([]byte, printed))
		p.Stdout([]byte("end"))
		<-end
		return wire.Exit{}
	}, func(c *Config) { c.ResultMemory, c.MaxOutputBytes = 8<<20, printed+3 })
	var started []string
	for range 2 {
		res := r.mustRun(t, mallory, Request{Session: "m", Runner: "python", Code: "hostile", Background: true, Followed: true})
		started = append(started, res.RunID)
		for res.Recent.Cursor < printed+3 {
			res = r.mustWait(t, mallory, res.RunID, WaitRequest{Timeout: time.Minute, Cursor: res.Recent.Cursor, Follow: true})
		}
	}
	if held := r.Executor.memory.Held(mallory.ID); held < 7<<20 {
		t.Fatalf("the first caller holds %d", held)
	}
	res, err := r.Run(t.Context(), ann, Request{Session: "a", Runner: "python", Code: "x"})
	if err != nil || res.StdoutCut != nil || len(res.Stdout) != 100<<10 {
		t.Errorf("%v: %d bytes, truncated %t", err, len(res.Stdout), res.StdoutCut != nil)
	}
	close(end)
	cut := false
	for _, id := range started {
		res, err := r.WaitRun(t.Context(), mallory, id, WaitRequest{Timeout: time.Minute})
		if err != nil || res.Running {
			t.Fatalf("%v %+v", err, res)
		}
		cut = cut || res.StdoutCut != nil
		wantExact(t, res.Stdout, res.StdoutCut != nil, printed+3)
		if got := res.Recent.Missed + int64(len(res.Recent.Data)); got != printed+3 {
			t.Errorf("the tape tells of %d bytes", got)
		}
	}
	if !cut {
		t.Error("nothing of the first caller's output was cut")
	}
	r.wantReleased(t)
}

// wantExact checks that the kept bytes and the reported omission add up to what was printed.
func wantExact(t *testing.T, out []byte, truncated bool, printed int) {
	t.Helper()
	if !truncated {
		if len(out) != printed {
			t.Errorf("%d bytes of %d", len(out), printed)
		}
		return
	}
	head, rest, _ := strings.Cut(string(out), "\n… [")
	var n int
	if _, err := fmt.Sscanf(rest, "%d bytes", &n); err != nil {
		t.Errorf("no count in %.100q", out)
		return
	}
	_, tail, _ := strings.Cut(rest, "] …\n")
	if len(head)+n+len(tail) != printed {
		t.Errorf("%d + %d left out + %d of %d", len(head), n, len(tail), printed)
	}
}

// TestEveryLeaseIsReleased: with many concurrent and followed runs, nothing fails, counts are exact
// and no memory stays held.
func TestEveryLeaseIsReleased(t *testing.T) {
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		for range 3 {
			p.Stdout(bytes.Repeat([]byte("x"), 50<<10))
			p.Display("text/html", make([]byte, 1<<20))
			p.Display(bundleMIME, []byte(`{"text/html":"<b>","text/plain":"b"}`))
		}
		return wire.Exit{}
	}, func(c *Config) { c.ResultMemory, c.MaxOutputBytes = 16<<20, 100<<10 })
	var done sync.WaitGroup
	for i := range 4 {
		caller := []session.Caller{ann, mallory}[i%2]
		done.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(i)))
			for range 8 {
				scope := share.NewScope(func() {})
				ctx := share.WithScope(t.Context(), scope)
				kind := rng.IntN(3)
				res, err := r.Run(ctx, caller, Request{Session: "s", Runner: "python", Code: "x", Background: kind > 0, Followed: kind > 1})
				for err == nil && res.Running {
					res, err = r.WaitRun(ctx, caller, res.RunID, WaitRequest{Timeout: time.Minute})
				}
				if err != nil {
					t.Errorf("%s: %v", caller.ID, err)
				} else {
					wantExact(t, res.Stdout, res.StdoutCut != nil, 150<<10)
				}
				if s := r.Executor.memory.Stats(); s.Used < 0 || s.Used > s.Capacity {
					t.Errorf("stats %+v", s)
				}
				scope.End()
			}
		})
	}
	done.Wait()
	r.wantReleased(t)
}

// TestLingeringRunsMakeRoom: a followed run stays in memory after its end until its memory is
// needed; then the store has its result.
func TestLingeringRunsMakeRoom(t *testing.T) {
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		p.Display("text/html", make([]byte, 3<<20))
		return wire.Exit{}
	}, func(c *Config) { c.ResultMemory = 16 << 20 })
	var ids []string
	for range 6 {
		res, err := r.Run(t.Context(), mallory, Request{Session: "m", Runner: "python", Code: "x", Background: true, Followed: true})
		for err == nil && res.Running {
			res, err = r.WaitRun(t.Context(), mallory, res.RunID, WaitRequest{Timeout: time.Minute})
		}
		if err != nil || res.Dropped() != 0 {
			t.Fatalf("%v, %d dropped", err, res.Dropped())
		}
		ids = append(ids, res.RunID)
	}
	for i, id := range ids {
		res, err := r.WaitRun(t.Context(), mallory, id, WaitRequest{Timeout: time.Minute})
		if err != nil || res.Running {
			t.Fatalf("%v %+v", err, res)
		}
		if i == 0 && res.Dropped() != 1 || i == 5 && res.Dropped() != 0 {
			t.Errorf("run %d: %d displays are dropped", i, res.Dropped())
		}
	}
	r.wantReleased(t)
}

// TestStalledAnswers: an answer that its client does not read holds memory until it is sent, or
// another caller needs it.
func TestStalledAnswers(t *testing.T) {
	r := newRig(t, nil, func(c *Config) { c.ResultMemory, c.MaxUploadBytes = 16<<20, 4<<20; c.Quota.Bytes = 64 << 20 })
	for _, caller := range []session.Caller{ann, mallory} {
		if _, err := r.Upload(t.Context(), caller, UploadRequest{Session: "s", Name: "f", Content: bytes.NewReader(make([]byte, 1<<20))}); err != nil {
			t.Fatal(err)
		}
	}
	var scopes []*share.Scope
	aborted := 0
	for range 2 {
		scope := share.NewScope(func() { aborted++ })
		scopes = append(scopes, scope)
		if _, err := r.ReadArtifact(share.WithScope(t.Context(), scope), mallory, "s", "f"); err != nil {
			t.Fatal(err)
		}
	}
	impatient, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := r.ReadArtifact(impatient, mallory, "s", "f"); err == nil || aborted != 0 {
		t.Errorf("a third answer: %v, %d aborted", err, aborted)
	}
	if a, err := r.ReadArtifact(t.Context(), ann, "s", "f"); err != nil || len(a.Content) != 1<<20 || aborted != 1 {
		t.Errorf("another caller: %v, %d bytes, %d aborted", err, len(a.Content), aborted)
	}
	for _, scope := range scopes {
		scope.End()
	}
	r.wantReleased(t)
}

// TestNoRoomForAnswer: without memory for the whole result, it is sent without displays and with
// less output.
func TestNoRoomForAnswer(t *testing.T) {
	bubble(t, "full", func(t *testing.T) {
		r := newRig(t, nil, func(c *Config) { c.ResultMemory = 16 << 20 })
		lease, err := r.Executor.memory.TryAcquire(session.Local.ID, 16<<20)
		if err != nil {
			t.Fatal(err)
		}
		res := r.answer(t.Context(), ann, Result{Stdout: make([]byte, 1<<20), stdoutTotal: 1 << 20, Displays: []Display{{MIME: "text/html", Data: []byte("x")}},
			Recent: Output{Data: make([]byte, 1<<20), Cursor: 1 << 20, Stderr: [][2]int{{0, 5}, {1<<20 - 5, 1 << 20}}}}, 0)
		if res.Dropped() != 1 || res.StdoutCut == nil || res.StderrCut != nil || len(res.Recent.Data) != freeOutput ||
			res.Recent.Missed != 1<<20-freeOutput || len(res.Recent.Stderr) != 1 || res.Recent.Stderr[0][1] != freeOutput {
			t.Errorf("%d dropped, %d and %d bytes, %+v", res.Dropped(), len(res.Stdout), len(res.Recent.Data), res.Recent.Stderr)
		}
		wantExact(t, res.Stdout, true, 1<<20)
		lease.Release()
		r.wantReleased(t)
	})
}

// TestCollectorCut: whenever the pool takes its memory, a collector keeps both ends and counts the
// omitted bytes.
func TestCollectorCut(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(3, seed))
		m := &memory{pool: share.New(share.Config{Capacity: 1 << 30}), caller: "ann"}
		c := newCollector(rng.IntN(200<<10), m)
		var all []byte
		for range rng.IntN(40) {
			p := bytes.Repeat([]byte{byte('a' + rng.IntN(26))}, rng.IntN(30<<10))
			c.write(p)
			all = append(all, p...)
			if rng.IntN(20) == 0 {
				c.hold.taken()
			}
		}
		out, cut := c.bytes()
		wantExact(t, out, cut != nil, len(all))
		head, tail := all[:min(len(all), 4)], all[max(0, len(all)-4):]
		if !bytes.HasPrefix(out, head) || !bytes.HasSuffix(out, tail) {
			t.Errorf("seed %d: the ends are not those of the output", seed)
		}
		c.hold.release()
		if s := m.pool.Stats(); s.Used != 0 {
			t.Errorf("seed %d: %+v", seed, s)
		}
	}
}
