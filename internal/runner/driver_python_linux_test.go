package runner

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/runners"
)

// startPythonDriver starts a notebook with the libraries of the Python runner.
func startPythonDriver(t *testing.T) *testedDriver {
	t.Helper()
	dir := os.Getenv("SANDBOX_TEST_RUNNERS")
	python := filepath.Join(dir, "python", "bin", "python")
	if _, err := os.Stat(python); dir == "" || err != nil {
		skip(t, "no Python environment: run make test, or set SANDBOX_TEST_RUNNERS to a directory that has been prepared")
	}
	modules := t.TempDir() // those of this source, not the installed ones
	names, err := fs.Glob(runners.Files, "python/*.py")
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		names[i] = filepath.Base(name)
	}
	if err := copyFiles(runners.Files, "python", modules, names...); err != nil {
		t.Fatal(err)
	}
	return startDriver(t, []string{python, filepath.Join(modules, "driver.py")}, "PYTHONPATH="+modules, "MPLCONFIGDIR="+t.TempDir())
}

// TestPythonAwait: all cells share one event loop, and an interrupt ends whatever a cell waits for.
func TestPythonAwait(t *testing.T) {
	const ping = "print('interrupt me', flush=True)\n"
	const setUp = "import asyncio, re, threading, time\nasync def work(n): await asyncio.sleep(0.01); print('at work', n); return n\nkept = 'kept'"
	const interrupted = "KeyboardInterrupt"
	late := func(cell, text string) string {
		return "[late output of cell " + cell + "]\n" + text + "[end of late output]\n"
	}
	for _, c := range []struct {
		name  string
		cells []driverCell
	}{
		{"await", []driverCell{
			{setUp, "", "", 0},
			{"await work(1)", "at work 1\n1\n", "", 0},
			{"await asyncio.gather(work(2), work(3))", "at work 2\nat work 3\n[2, 3]\n", "", 0},
			{"async def numbers():\n    for i in range(3): yield i\nasync for i in numbers(): print(i)\n[i async for i in numbers()]", "0\n1\n2\n[0, 1, 2]\n", "", 0},
			{"async with asyncio.Lock() as nothing: print(nothing)", "None\n", "", 0},
			{"await asyncio.wait_for(asyncio.sleep(60), 0.01)", "", "TimeoutError", 1},
			{"await asyncio.to_thread(print, 'in a thread')", "in a thread\n", "", 0},
			{"async def fails(): raise ValueError('of the user')\nawait fails()", "", "in fails\n    async def fails(): raise ValueError('of the user')", 1},
		}},
		{"one loop", []driverCell{
			{setUp, "", "", 0},
			{"gate = asyncio.Event()\nasync def waiter(): await gate.wait(); return 'opened'\ntask = asyncio.create_task(waiter()); loop = asyncio.get_running_loop()", "", "", 0},
			{"task.done(), loop is asyncio.get_running_loop()", "(False, True)\n", "", 0},
			{"gate.set(); await task", "'opened'\n", "", 0},
			{"queue = asyncio.Queue()\nawait queue.put(1)", "", "", 0},
			{"await queue.get(), asyncio.get_event_loop() is loop", "(1, True)\n", "", 0},
			{"handle = loop.call_soon(print, 'called')", "", "", 0},
			{"await asyncio.sleep(0)", "", late("7", "called\n"), 0},
		}},
		{"loops of their own", []driverCell{
			{setUp, "", "", 0},
			{"asyncio.run(work(1))", "at work 1\n1\n", "", 0},
			{"asyncio.get_event_loop().run_until_complete(work(2))", "at work 2\n2\n", "", 0},
			{"mine = asyncio.new_event_loop()\nprint(mine.run_until_complete(work(3))); mine.close()", "at work 3\n3\n", "", 0},
			{"task = asyncio.create_task(work(4)); print(asyncio.run(work(5)))", "at work 5\n5\n", "", 0},
			{"await task", "4\n", late("5", "at work 4\n"), 0},
			{"def threaded(): print(asyncio.run(work(6)))\nt = threading.Thread(target=threaded); t.start(); t.join()", "at work 6\n6\n", "", 0},
			{"async def nested():\n    c = work(7)\n    try: asyncio.run(c)\n    finally: c.close()\nawait nested()", "", "running event loop\nHint: this code runs in an event loop already: await the coroutine", 1},
			{"async def other():\n    c = work(7)\n    try: asyncio.new_event_loop().run_until_complete(c)\n    finally: c.close()\nawait other()", "", "Hint: this code runs", 1},
			{"await work(8)", "at work 8\n8\n", "", 0},
		}},
		{"interrupts", []driverCell{
			{setUp + "\ndef soon(): asyncio.get_running_loop().call_later(0.01, print, 'interrupt me')", "", "", 0}, // while the cell waits
			{"soon(); await asyncio.sleep(60)", marker, interrupted, 130},
			{"async def deep():\n    " + ping + "    await asyncio.sleep(60)\nawait deep()", marker, "in deep\n", 130},
			{"asyncio.run(deep())", marker, interrupted, 130},
			{"def sleep():\n    " + ping + "    time.sleep(60)\nsleep()", marker, "in sleep\n", 130},
			{ping + "while True: pass", marker, interrupted, 130},
			{ping + "re.match('(a+)+$', 'a' * 60 + 'b')", marker, interrupted, 130},
			{ping + "threading.Event().wait()", marker, interrupted, 130},
			{"async def tidy():\n    soon()\n    try: await asyncio.sleep(60)\n    except asyncio.CancelledError: print('tidied'); raise\nawait tidy()", marker + "tidied\n", interrupted, 130},
			{"async def stubborn():\n    soon()\n    while True:\n        try: await asyncio.sleep(60)\n        except asyncio.CancelledError: pass\nawait stubborn()", marker, interrupted, 130},
			{"kept, await work(1)", "at work 1\n('kept', 1)\n", "", 0},
		}},
		{"an interrupt at the moment from which on a cell may be interrupted", []driverCell{
			{"import os, signal, sys\nkept, real = 'kept', signal.signal\ndef instant(number, handler):\n    real(number, handler)\n" +
				"    if handler is signal.default_int_handler and sys._getframe(1).f_code.co_name == 'main': signal.signal = real; os.kill(os.getpid(), number)\nsignal.signal = instant", "", "", 0},
			{"print('not reached')", "", interrupted, 130},
			{"kept", "'kept'\n", "", 0},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			startPythonDriver(t).expectCells(c.cells, "driver.py", "sandbox_shell.py", "IPython")
		})
	}
}

// TestPythonTasks: tasks go on between cells, and an interrupt ends one that blocks the next cell.
func TestPythonTasks(t *testing.T) {
	d := startPythonDriver(t)
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	await := func() { // until the task has opened the gate
		t.Helper()
		opened := make(chan error, 1)
		go func() { _, err := os.ReadFile(gate); opened <- err }()
		select {
		case err := <-opened:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the task does not go on")
		}
	}
	d.expectCells([]driverCell{{"import asyncio, time\nasync def tell():\n    await asyncio.sleep(0.01)\n    print('behind'); open('" + gate + "', 'w').close()\ntask = asyncio.create_task(tell())", "", "", 0}})
	await()
	d.expectCells([]driverCell{
		{"print('mine'); task.done()", "mine\nTrue\n", "[late output of cell 1]\nbehind\n[end of late output]\n", 0},
		{"async def block(): await asyncio.sleep(0); open('" + gate + "', 'w').close(); time.sleep(60)\nkept, task = 'kept', asyncio.create_task(block())", "", "", 0},
	})
	await()
	if err := syscall.Kill(d.cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	d.expectCells([]driverCell{{"kept", "'kept'\n", "", 0}})
}
