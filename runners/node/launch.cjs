// Runs one JavaScript or TypeScript file of a user inside the sandbox: node <flags> launch.cjs <file>
//
// The file is in /tmp, but runs as if it were in the working directory: relative imports, __dirname
// and stack traces use /data/<name>. Both module systems work in one file: import, top-level await
// and import.meta, and require, module and exports.
//
// The agent may start it before there is a file: see awaitRun.
'use strict';

const fs = require('node:fs');
const path = require('node:path');
const esbuild = require('./esbuild.cjs');
const { becomeMain, compileScript, compileTypeScript, defineGlobals, describe, isTypeScript, main, ready, sources, textModule } = require('./modules.cjs');

const { emit, kill, reallyExit } = process;
// drained: the event loop is empty; stop: this process may stop instead of exiting
const state = { settled: true, drained: false, threw: false, stop: false };

// Print an uncaught error as Node does, but with the user's source. This event does not affect
// programs that handle uncaught exceptions.
process.on('uncaughtExceptionMonitor', (error) => {
  state.threw = true;
  if (process.listenerCount('uncaughtException') > 0) return;
  const plain = !(error instanceof Error) && typeof error?.stack !== 'string';
  if (plain && !main.module) return; // Node prints it; in a module it would print compiled code
  fs.writeSync(2, describe(error) + '\n');
  process.exit(1);
});

process.on('beforeExit', () => { state.drained = true; });
process.on('exit', (code) => {
  if (!state.settled && !code && state.drained) { // not process.exit
    fs.writeSync(2, `Warning: the top-level await of ${main.path} never finished: nothing is left that could resolve it\n`);
    process.exitCode = 13;
  }
  // End like process.exit: freeing V8's memory takes 1 ms. Nobody else may have work to do here.
  if (!state.threw && process.listenerCount('exit') === 1 && process.emit === emit && process.reallyExit === reallyExit) {
    const status = process.exitCode ?? code;
    if (mayStop()) {
      process.title = `exit ${status & 255}`;
      process.kill(process.pid, 'SIGSTOP'); // the agent kills it: exiting takes 3 ms
    }
    process.reallyExit(status);
  }
});

// mayStop returns whether nothing depends on an orderly exit: threads, addons, what V8 has buffered.
function mayStop() {
  return !['inspector', 'trace_events', 'v8', 'worker_threads'].some((name) => process.moduleLoadList.includes(`NativeModule ${name}`)) &&
    !Object.keys(require.cache).some((name) => name.endsWith('.node')) &&
    process._getActiveRequests().length === 0 && process.kill === kill && state.stop && state.drained;
}

// awaitRun returns the file and the environment. A prestarted process has no file: it rehearses, then
// waits for both on stdin, a socket. The run must not notice any of this.
function awaitRun(file) {
  if (fs.existsSync(file) || !fs.fstatSync(0).isSocket()) return { file, env: process.env };
  esbuild.waiting.connect(3);
  try {
    rehearse(file);
  } catch {} // the program reports it
  fs.writeSync(0, 'ready\n');
  const run = JSON.parse(fs.readFileSync(0, 'utf8'));
  state.stop = run.stop;
  fs.writeSync(0, 'taken\n');
  fs.closeSync(0);
  fs.openSync('/dev/null'); // becomes 0, the lowest free descriptor
  process.chdir(process.cwd()); // the workspace may have been attached during the wait
  return run;
}

// rehearse does what most programs do: Node loads and compiles most of its own code on first use.
function rehearse(file) {
  for (const name of ['child_process', 'net', 'url', 'util']) require(`node:${name}`);
  const { Console } = require('node:console');
  const { Socket } = require('node:net');
  setEnvironment({ ...process.env });
  fs.closeSync(fs.openSync('/dev/null'));
  becomeMain(file, []);
  compileScript('', file);
  const code = 'const numbers: number[] = [1];\nexport { numbers };\n';
  ready(textModule(esbuild.waiting.isConnected() ? compileTypeScript(code, file) : '', file)).catch(() => {});
  // Like process.stdout, but without a descriptor. With colorMode 'auto' it would open process.stderr.
  const stdout = new Socket({ handle: { writeUtf8String: () => 0 }, readable: false, writable: true });
  new Console({ stdout, colorMode: false }).log('text', 1, { a: [1] });
  mayStop();
  process.kill(process.pid, 0);
  process.chdir(process.cwd());
  process._tickCallback?.(); // settles promises now
}

function setEnvironment(env) {
  for (const name of Object.keys(process.env)) {
    if (!Object.hasOwn(env, name)) delete process.env[name];
  }
  for (const [name, value] of Object.entries(env)) {
    if (process.env[name] !== value) process.env[name] = value;
  }
}

function start() {
  const args = process.argv.slice(3);
  const run = awaitRun(path.resolve(process.argv[2]));
  const file = path.join(process.cwd(), path.basename(run.file));
  const text = fs.readFileSync(run.file, 'utf8');
  sources.set(file, text);
  let known;
  const prepare = () => {
    if (known) return;
    setEnvironment(run.env);
    known = becomeMain(file, args);
  };

  const source = isTypeScript(file) ? compileTypeScript(text, file, { meanwhile: prepare }) : text;
  prepare();
  // "await (x)" is a call in a script and an await in a module. Users mean the latter.
  const asModule = isTypeScript(file) || /\.mjs$/.test(file) || /(^|[^.\w$])await\s*[([`+\-/]/.test(source);
  let script = asModule ? undefined : compileScript(source, file);
  if (!script) {
    try {
      main.module = textModule(source, file);
    } catch (error) {
      script = compileScript(source, file); // for example a return at the top level
      if (!script) throw error;
    }
  }
  if (script) {
    esbuild.waiting.close();
    return script.call(known.exports, known.exports, known.require, known.module, known.__filename, known.__dirname);
  }

  defineGlobals(known);
  state.settled = false;
  ready(main.module).then(() => { state.settled = true; }, (error) => {
    state.settled = true;
    process.nextTick(() => { throw error; }); // uncaught, like Node's main module, not an unhandled rejection
  });
}

start();
