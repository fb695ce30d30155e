package integration

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// whetherBooted prints whether its process was started before its code existed.
const whetherBooted = "console.log(process.moduleLoadList.includes('NativeModule child_process'))"

// coldNode sets an environment that gives a run its own new process.
func coldNode(args map[string]any) { args["environment"] = map[string]string{"NODE_COLD": "1"} }

// waitingNode lists the server's processes that wait for code.
func (s *server) waitingNode(t *testing.T) (list []process) {
	t.Helper()
	for _, p := range descendants(t, s.cmd.Process.Pid) {
		cmdline, _ := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/cmdline")
		if strings.Contains(string(cmdline), "/launch.cjs\x00/tmp/main-") {
			list = append(list, p)
		}
	}
	return list
}

// awaitNode waits until there is one such process.
func (s *server) awaitNode(t *testing.T) (p process) {
	t.Helper()
	eventually(t, 30*time.Second, "Node to wait for the next run", func() bool {
		list := s.waitingNode(t)
		if len(list) == 1 {
			p = list[0]
		}
		return len(list) == 1
	})
	return p
}

// TestBooted checks that a program in a prestarted process cannot notice it, except by the clock.
func TestBooted(t *testing.T) {
	s := serve(t, "SANDBOX_POOL_SIZE=0") // pooled sandboxes hold a waiting Node, too
	s.run(t, "booted", "javascript", ";")
	s.awaitNode(t)
	if r := s.run(t, "booted", "javascript", whetherBooted); r.Output != "true\n" {
		t.Fatalf("the next run: %+v", r)
	}
	if r := s.run(t, "booted", "javascript", whetherBooted, coldNode); r.Output != "false\n" {
		t.Fatalf("a run with a variable that is read at the start: %+v", r)
	}

	// These values differ in every process.
	volatile := regexp.MustCompile(`main-[0-9a-f]{8}|NODE_COLD(=1)?\n|\(node:\d+\)`)
	for _, p := range []struct{ name, language, code string }{
		{"value", "javascript", "console.log(2 + 2)"},
		{"nothing", "javascript", ";"},
		{"types", "typescript", "const x: number = 4; enum E { A }; console.log(x, E.A)"},
		{"exception", "javascript", "function f() { null.x }\nf()"},
		{"exception in TypeScript", "typescript", "interface I { a: number }\n\nfunction f(i: I): never { throw new RangeError('no ' + i.a) }\nf({ a: 1 })"},
		{"stack", "javascript", "console.log(new Error('x').stack)"},
		{"stack in a module", "typescript", "await 0; console.log(new Error('x').stack)"},
		{"deep stack", "javascript", "Error.stackTraceLimit = Infinity; setTimeout(() => console.log(new Error('x').stack))"},
		{"thrown value", "javascript", "throw 5"},
		{"syntax", "javascript", "console.log(1)\nlet x = = 2"},
		{"syntax in TypeScript", "typescript", "let x: = 2"},
		{"rejection", "javascript", "Promise.reject(new Error('lost'))"},
		{"rejection of a value", "javascript", "Promise.reject(5)"},
		{"handlers", "javascript", "process.on('uncaughtException', (e) => console.log('caught', e.message)); process.on('exit', (c) => console.log('exit', c)); throw new Error('x')"},
		{"top-level await", "javascript", "const v = await Promise.resolve(5); console.log(v)"},
		{"await without an end", "javascript", "console.log(1); await new Promise(() => {})"},
		{"exit code", "javascript", "process.exit(3)"},
		{"exit code to come", "javascript", "process.exitCode = 4; setTimeout(() => console.log('later'))"},
		{"exit code beyond a byte", "javascript", "process.exitCode = 259"},
		{"negative exit code", "javascript", "process.exitCode = -1"},
		{"exit code as text", "javascript", "process.exitCode = '5'"},
		{"exit handler", "javascript", "process.on('exit', (c) => console.log('exit', c))"},
		{"a handler of beforeExit", "javascript", "process.once('beforeExit', () => setTimeout(() => console.log('later')))"},
		{"another title", "javascript", "process.title = 'exit 3'; console.log(process.title)"},
		{"stopped for a while", "javascript", "require('child_process').spawn('sh', ['-c', `until grep -q '^State:.T' /proc/${process.pid}/status; do :; done; kill -CONT ${process.pid}`]); process.kill(process.pid, 'SIGSTOP'); console.log('on')"},
		{"a lot of memory", "javascript", "globalThis.kept = Buffer.alloc(100 << 20, 1)"},
		{"a thread at the end", "javascript", "new (require('worker_threads').Worker)('setInterval(() => {}, 1)', { eval: true }).unref()"},
		{"a server at the end", "javascript", "require('net').createServer().listen(0, '127.0.0.1').unref(); console.log(1)"},
		{"what V8 has buffered", "javascript", "const v8 = require('v8'); v8.setFlagsFromString('--print-flag-values'); v8.setFlagsFromString('--trace-opt-verbose'); console.log(1)"},
		{"abort", "javascript", "process.abort()"},
		{"killed", "javascript", "process.kill(process.pid, 'SIGKILL')"},
		{"terminated", "javascript", "process.kill(process.pid, 'SIGTERM'); setTimeout(() => {}, 10000)"},
		{"a handled signal", "javascript", "process.once('SIGINT', (s) => console.log(s)); process.kill(process.pid, 'SIGINT'); setTimeout(() => {}, 20)"},
		{"input", "javascript", "console.log(JSON.stringify(require('fs').readFileSync(0, 'utf8')))"},
		{"input as a stream", "javascript", "process.stdin.on('data', console.log).on('end', () => console.log('end')); console.log(process.stdin.constructor.name, process.stdin.isTTY)"},
		{"input of a child", "javascript", "const c = require('child_process'); console.log(c.spawnSync('readlink', ['/proc/self/fd/0'], { stdio: ['inherit', 'pipe'] }).stdout.toString(), c.spawnSync('cat', { stdio: 'inherit' }).status)"},
		{"output", "javascript", "process.stdout.write('a'); process.stderr.write('b'); console.error('c'); console.log(process.stdout.isTTY, process.stdout.constructor.name, process.stderr.constructor.name)"},
		{"much output", "javascript", "for (let i = 0; i < 20000; i++) console.log('line ' + i)"},
		{"a megabyte of output", "typescript", "process.stdout.write('x'.repeat(1 << 20)); console.log('end')"},
		// No more than the pipe holds: Node.js drops what it has not written by then.
		{"output before an exit", "javascript", "for (let i = 0; i < 4000; i++) console.log('line ' + i); process.exit(0)"},
		{"output of a child", "javascript", "require('child_process').execSync('echo out; echo err >&2', { stdio: 'inherit' })"},
		{"environment", "javascript", "for (const k of Object.keys(process.env).sort()) console.log(`${k}=${process.env[k]}`)"},
		{"environment of a child", "javascript", "console.log(require('child_process').execSync('env | sort').toString())"},
		{"arguments", "javascript", "console.log(process.argv, process.execArgv, process.argv0, process.execPath, process.title.slice(0, 60))"},
		{"command line", "javascript", "console.log(require('fs').readFileSync('/proc/self/cmdline', 'utf8').split('\\0'))"},
		{"names", "javascript", "console.log(__filename, __dirname, require.main === module, module.id, module.paths, process.cwd())"},
		{"names in a module", "typescript", "console.log(import.meta.url, import.meta.filename, import.meta.main, __filename, typeof require, process.mainModule === require.main)"},
		{"globals", "javascript", "console.log(Object.getOwnPropertyNames(globalThis).sort().join())"},
		{"globals in a module", "typescript", "console.log(Object.getOwnPropertyNames(globalThis).sort().join())"},
		{"handles", "javascript", "console.log(process._getActiveHandles().length, process._getActiveRequests().length, process.getActiveResourcesInfo())"},
		{"listeners", "javascript", "console.log(process.eventNames(), process.listenerCount('exit'))"},
		{"cached modules", "javascript", "console.log(Object.keys(require.cache))"},
		{"descriptors", "javascript", "const fs = require('fs'); console.log(fs.readdirSync('/proc/self/fd').sort().slice(0, -1).map((n) => { try { return n + fs.readlinkSync('/proc/self/fd/' + n).replace(/\\d+/g, '') } catch { return '' } }))"},
		{"next descriptor", "javascript", "console.log(require('fs').openSync('/dev/null'))"},
		{"privileges", "javascript", "console.log(require('fs').readFileSync('/proc/self/status', 'utf8').match(/^(Cap|NoNew|Seccomp|Sig|Threads|Uid|Gid|Groups|Umask).*/gm).filter((l) => !l.startsWith('SigQ')))"},
		{"limits", "javascript", "console.log(require('fs').readFileSync('/proc/self/limits', 'utf8'), require('child_process').execSync('ulimit -a').toString())"},
		{"worth", "javascript", "console.log(require('fs').readFileSync('/proc/self/oom_score_adj', 'utf8'), require('os').getPriority())"},
		{"place", "javascript", "const c = require('child_process'); console.log(process.umask(), process.getuid(), c.execSync('ps -o pgid=,sid= -p $PPID || true').toString().trim().split(/\\s+/).map((n) => n == process.pid))"},
		{"processes", "javascript", "console.log(require('fs').readdirSync('/proc').filter((n) => /^\\d+$/.test(n)).length, process.ppid)"},
		{"temporary files", "javascript", "console.log(require('fs').readdirSync('/tmp'), require('fs').statSync('/tmp/' + require('path').basename(__filename)).mode)"},
		{"a module of the workspace", "typescript", "require('fs').writeFileSync('mine.ts', 'export const x: number = 5'); const { x } = await import('./mine'); console.log(x)"},
		{"its package", "typescript", "require('fs').mkdirSync('node_modules/own', { recursive: true }); require('fs').writeFileSync('node_modules/own/index.js', 'module.exports = 7'); console.log(require('own'), (await import('own')).default)"},
		{"a library", "typescript", "import Papa from 'papaparse'; console.log(Papa.parse('a,b').data)"},
		{"a thread", "javascript", "const { Worker } = require('worker_threads'); new Worker('console.log(process.argv.length, Object.keys(process.env).length > 3)', { eval: true }).on('exit', (c) => console.log('ended', c))"},
		{"a fork", "javascript", "require('fs').writeFileSync('child.js', 'process.send(process.execArgv)'); require('child_process').fork('./child.js').on('message', console.log)"},
		{"an ended server", "javascript", "const s = require('net').createServer((c) => c.end('hi')).listen(0, '127.0.0.1', () => require('net').connect(s.address().port).on('data', (d) => console.log(String(d))).on('close', () => s.close()))"},
		{"time zone", "javascript", "console.log(new Date(0).toString(), Intl.DateTimeFormat().resolvedOptions().timeZone, (1234.5).toLocaleString())"},
		{"too deep", "javascript", "const f = (n) => f(n + 1); try { f(0) } catch (e) { console.log(e.name) }"},
		{"return at the top level", "javascript", "console.log(1); return; console.log(2)"},
		{"warning", "javascript", "process.emitWarning('mind'); new Buffer(1)"},
	} {
		t.Run(p.name, func(t *testing.T) {
			facts := func(r runResult) [3]string {
				return [3]string{volatile.ReplaceAllString(r.Output, ""), r.Cause, strconv.Itoa(r.ExitCode)}
			}
			s.awaitNode(t)
			booted := facts(s.run(t, "booted", p.language, p.code))
			plain := facts(s.run(t, "booted", p.language, p.code, coldNode))
			if booted != plain {
				t.Errorf("booted: %q\nplain:  %q", booted, plain)
			}
		})
	}

	t.Run("variables of a run are its own", func(t *testing.T) {
		code := "console.log(process.env.MINE, Object.keys(process.env).includes('__proto__'), process.env.HOME, require('fs').readFileSync('/proc/self/environ', 'utf8').includes('s3cr3t'))"
		env := map[string]string{"MINE": "s3cr3t", "__proto__": "odd", "HOME": "/data"}
		set := func(args map[string]any) { args["environment"] = env }
		s.awaitNode(t)
		if r := s.run(t, "booted", "javascript", code, set); r.Output != "s3cr3t true /data false\n" {
			t.Errorf("%+v", r)
		}
		if r := s.run(t, "booted", "javascript", code); r.Output != "undefined false /tmp false\n" {
			t.Errorf("the next run: %+v", r)
		}
	})
}

// TestBootedEnd checks that nothing of a run is left after it, although its program is killed when
// it has nothing to do, and that code gains nothing by pretending that.
func TestBootedEnd(t *testing.T) {
	s := serve(t, "SANDBOX_POOL_SIZE=0")
	s.run(t, "end", "javascript", ";")
	for _, p := range []struct {
		name, code string
		exit       int
	}{
		{"alone", "", 0},
		{"with a child", "require('child_process').spawn('sh', ['-c', loop], { detached: true, stdio: 'ignore' }).unref()", 0},
		{"with an orphan", "require('child_process').spawnSync('sh', ['-c', `(${loop}) &`], { stdio: 'ignore' })", 0},
		{"pretended", "require('child_process').spawnSync('sh', ['-c', `(${loop}) &`], { stdio: 'ignore' }); process.title = 'exit 7'; process.kill(process.pid, 'SIGSTOP')", 7},
		{"pretended by an orphan", "require('child_process').spawnSync('sh', ['-c', `sh -c 'printf \"exit 7\" >/proc/$$/comm; kill -STOP $$' &`], { stdio: 'ignore' }); process.exitCode = 4", 4},
	} {
		t.Run(p.name, func(t *testing.T) {
			s.awaitNode(t)
			code := "const loop = 'while :; do echo >>ticks; done'; require('fs').writeFileSync('ticks', ''); " + p.code
			if r := s.run(t, "end", "javascript", code); r.ExitCode != p.exit || r.Output != "" {
				t.Errorf("%+v", r)
			}
			if r := s.run(t, "end", "shell", "a=$(wc -c <ticks); sleep 0.1; [ $a = $(wc -c <ticks) ]"); r.ExitCode != 0 {
				t.Errorf("code of the run continues after its end: %+v", r)
			}
		})
	}
	t.Run("a trace", func(t *testing.T) {
		s.run(t, "end", "javascript", ";")
		s.awaitNode(t)
		s.run(t, "end", "javascript", "require('trace_events').createTracing({ categories: ['v8'] }).enable()")
		if r := s.run(t, "end", "shell", "tail -c 2 node_trace.1.log"); r.Output != "]}" {
			t.Errorf("the trace that Node writes at its end: %+v", r)
		}
	})
}

// TestBootedProcess checks that Node waits only in sessions that used Node, never during a run, and
// ends with its sandbox.
func TestBootedProcess(t *testing.T) {
	s := serve(t, "SANDBOX_POOL_SIZE=0") // pooled sandboxes hold a waiting Node, too
	s.run(t, "other", "shell", "true")
	s.run(t, "other", "python", "pass")
	if list := s.waitingNode(t); len(list) > 0 {
		t.Errorf("a session that has not used Node: %v", list)
	}
	s.run(t, "node", "javascript", ";")
	first := s.awaitNode(t)
	if r := s.run(t, "node", "javascript", whetherBooted, coldNode); r.Output != "false\n" || !first.gone() {
		t.Errorf("after a run that could not use it, %v is there; %+v", first, r)
	}
	second := s.awaitNode(t)
	if err := syscall.Kill(second.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if r := s.run(t, "node", "javascript", "console.log(5)"); r.Output != "5\n" || r.ExitCode != 0 || r.Cause != "" {
		t.Errorf("the run after its death: %+v", r)
	}
	third := s.awaitNode(t)
	s.call(t, "close_session", map[string]any{"session_id": "node"})
	eventually(t, 10*time.Second, "the end of what waited", third.gone)
}
