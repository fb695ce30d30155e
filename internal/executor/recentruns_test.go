package executor

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
)

// TestFollow: following a run returns each part of its output at once, marks stderr, and loses
// nothing that was printed between the last call and the end.
func TestFollow(t *testing.T) {
	bubble(t, "in parts", func(t *testing.T) {
		big := bytes.Repeat([]byte("x"), 500<<10)
		next := make(chan struct{})
		r := newRig(t, func(p *sessiontest.Process) wire.Exit {
			p.Stdout([]byte("out"))
			p.Stderr([]byte("err"))
			<-next
			p.Stdout(big)
			return wire.Exit{}
		}, nil)
		start := time.Now()
		res := r.mustRun(t, session.Local, Request{Session: "x", Runner: "python", Background: true, Followed: true})
		synctest.Wait()
		follow := func(cursor int64) Result {
			t.Helper()
			res := r.mustWait(t, session.Local, res.RunID, WaitRequest{Timeout: time.Minute, Cursor: cursor, Follow: true})
			return res
		}
		first := follow(0)
		if !first.Running || string(first.Recent.Data) != "outerr" || fmt.Sprint(first.Recent.Stderr) != "[[3 6]]" || time.Since(start) != 0 {
			t.Fatalf("first, after %v: %+v", time.Since(start), first)
		}
		go func() { time.Sleep(10 * time.Second); close(next) }()
		second := follow(first.Recent.Cursor)
		if time.Since(start) != 10*time.Second || len(second.Recent.Data) == 0 {
			t.Fatalf("second, after %v: %d bytes", time.Since(start), len(second.Recent.Data))
		}
		synctest.Wait()
		last := second
		data := second.Recent.Data
		for last.Running {
			last = follow(last.Recent.Cursor)
			data = append(data, last.Recent.Data...)
		}
		if !bytes.Equal(data, big) || last.Recent.Missed != 0 || last.ExitCode != 0 {
			t.Errorf("%d bytes, %d missed", len(data), last.Recent.Missed)
		}
		// Also later, from the beginning.
		again := follow(0)
		if again.Recent.Missed != 0 || len(again.Recent.Data) != 6+len(big) || fmt.Sprint(again.Recent.Stderr) != "[[3 6]]" {
			t.Errorf("again: %d bytes, %d missed, %v", len(again.Recent.Data), again.Recent.Missed, again.Recent.Stderr)
		}
	})

	bubble(t, "a bounded number stays in memory", func(t *testing.T) {
		r := newRig(t, func(p *sessiontest.Process) wire.Exit { p.Stderr([]byte("err")); return wire.Exit{} }, nil)
		var ids []string
		for range maxLingering + 3 {
			res := r.mustRun(t, session.Local, Request{Session: "x", Runner: "python", Background: true, Followed: true})
			ids = append(ids, res.RunID)
			if _, err := r.WaitRun(t.Context(), session.Local, res.RunID, WaitRequest{Timeout: time.Minute}); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(r.runs.byID); n != maxLingering {
			t.Errorf("%d runs are held in memory", n)
		}
		// The store has the first run, with separate streams.
		res, err := r.WaitRun(t.Context(), session.Local, ids[0], WaitRequest{})
		if err != nil || string(res.Recent.Data) != "err" || fmt.Sprint(res.Recent.Stderr) != "[[0 3]]" {
			t.Errorf("from the store: %+v, %v", res, err)
		}
	})
}

// TestRecentRuns: only its caller sees a session's runs, and watchers hear about their start and
// end.
func TestRecentRuns(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		steps := make(chan string)
		r := newRig(t, stepper(steps), nil)
		heard := 0
		r.WatchRuns(func(c session.Caller) {
			if c == session.Local {
				heard++
			}
		})
		res := r.mustRun(t, session.Local, Request{Session: "x", Runner: "python", Background: true})
		if got := r.RecentRuns(session.Local, "x"); len(got) != 1 || got[0].ID != res.RunID || !got[0].Running || got[0].Runner != "python" || heard != 1 {
			t.Errorf("while it runs: %+v, heard %d", got, heard)
		}
		if got := append(r.RecentRuns(mallory, "x"), r.RecentRuns(session.Local, "y")...); got != nil {
			t.Errorf("of others: %+v", got)
		}
		if _, err := r.CancelRun(t.Context(), session.Local, res.RunID); err != nil {
			t.Fatal(err)
		}
		if got := r.RecentRuns(session.Local, "x"); len(got) != 1 || got[0].Running || got[0].Cause != sandbox.CauseCancelled || heard != 2 {
			t.Errorf("after its end: %+v, heard %d", got, heard)
		}
		if _, err := r.Run(t.Context(), session.Local, Request{Session: "x", Runner: "cobol"}); err == nil {
			t.Error("ran")
		}
		close(steps) // from now on, runs end at once
		for range keptRuns + 5 {
			if _, err := r.Run(t.Context(), session.Local, Request{Session: "x", Runner: "python"}); err != nil {
				t.Fatal(err)
			}
		}
		if got := r.RecentRuns(session.Local, "x"); len(got) != keptRuns || got[0].ExitCode != 3 {
			t.Errorf("%d runs are listed, the last is %+v", len(got), got[0])
		}
		if _, err := r.Run(t.Context(), session.Local, Request{Session: "once", Runner: "python", Once: true}); err != nil {
			t.Fatal(err)
		}
		if got := r.RecentRuns(session.Local, "once"); got != nil {
			t.Errorf("of a closed session: %+v", got)
		}
	})
}

// TestTapeStreams: a tape knows the stream of each kept byte, however much it has dropped.
func TestTapeStreams(t *testing.T) {
	tp := tape{allowance: allowance{limit: 10}}
	for i := range 5 * maxMarks {
		tp.write(Stdout, []byte("o"))
		tp.write(Stderr, []byte("e"))
		if got := tp.since(0, true); i > 10 && string(got.Data[:2]) != "oe" && string(got.Data[:2]) != "eo" || len(tp.marks) > maxMarks {
			t.Fatalf("%q, %d marks", got.Data, len(tp.marks))
		}
	}
	kept := tp.last(4)
	got := kept.since(tp.end()-4, true)
	if string(got.Data) != "oeoe" || fmt.Sprint(got.Stderr) != "[[1 2] [3 4]]" {
		t.Errorf("%q, %v", got.Data, got.Stderr)
	}
	if got := tp.since(tp.end()-1, true); fmt.Sprint(got.Stderr) != "[[0 1]]" {
		t.Errorf("the last byte: %v", got.Stderr)
	}
	wide := tape{allowance: allowance{limit: 100 * maxMarks}}
	for range 2 * maxMarks {
		wide.write(Stderr, []byte("e"))
		wide.write(Stdout, []byte("o"))
	}
	if len(wide.marks) > maxMarks {
		t.Errorf("%d marks", len(wide.marks))
	}
}
