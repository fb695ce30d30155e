package prestart

import (
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent/runinit"
	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/wire"
)

// TestZygoteDiesForking: a run whose zygote dies without an answer starts in another way. A fork
// that the zygote may have made must not run the program a second time.
func TestZygoteDiesForking(t *testing.T) {
	ours, theirs, err := proc.SocketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		t.Fatal(err)
	}
	var zs zygotes
	zs.add("python", &zygote{conn: ours})
	if _, err := theirs.Write([]byte("ready")); err != nil {
		t.Fatal(err)
	}
	spec := make(chan *os.File, 1)
	go func() { // the zygote, whose fork lives on with the descriptors
		defer theirs.Close()
		control := make([]byte, unix.CmsgSpace(16*4))
		_, n, _, _, err := unix.Recvmsg(int(theirs.Fd()), make([]byte, 16), control, unix.MSG_CMSG_CLOEXEC)
		messages, _ := unix.ParseSocketControlMessage(control[:n])
		if err != nil || len(messages) != 1 {
			close(spec)
			return
		}
		fds, _ := unix.ParseUnixRights(&messages[0])
		for i, fd := range fds {
			if i == 3 {
				spec <- os.NewFile(uintptr(fd), "spec")
			} else {
				_ = unix.Close(fd)
			}
		}
	}()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	<-zs.best("python").ready
	run := &runinit.Spec{Argv: []string{"python"}, Code: []byte("code"), Zygote: &wire.Zygote{Name: "python"}}
	if _, ok := zs.fork(run, &runinit.Place{PID: null, Mount: null, IPC: null, Root: null, Stdout: null, Stderr: null}); ok {
		t.Fatal("the zygote is dead, and has forked")
	}
	f := <-spec
	if f == nil {
		t.Fatal("the zygote was not asked")
	}
	defer f.Close()
	if text, err := io.ReadAll(f); len(text) > 0 || err != nil {
		t.Errorf("a process without a run got %q, %v", text, err)
	}
}

// TestRehearsal: a process that is prestarted while others need the processor does not rehearse.
func TestRehearsal(t *testing.T) {
	for ahead, want := range map[bool]string{true: requestPrestart, false: requestRun} {
		if got := requestFor(&wire.Run{Ahead: ahead}); got != want {
			t.Errorf("ahead %v: %q", ahead, got)
		}
	}
}
