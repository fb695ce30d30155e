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
const vm = require('node:vm');
const { becomeMain, compileScript, compileTypeScript, defineGlobals, describe, isTypeScript, main, ready, sources, textModule } = require('./modules.cjs');

// Print an uncaught error as Node does, but with the user's source. This event does not affect
// programs that handle uncaught exceptions.
process.on('uncaughtExceptionMonitor', (error) => {
  if (process.listenerCount('uncaughtException') > 0) return;
  const plain = !(error instanceof Error) && typeof error?.stack !== 'string';
  if (plain && !main.module) return; // Node prints it; in a module it would print compiled code
  fs.writeSync(2, describe(error) + '\n');
  process.exit(1);
});

// awaitRun returns the file. A prestarted process has none: it does what every run begins with, then
// waits for the file and the environment on stdin, a socket. The run must not notice any of this, and
// the working directory may change meanwhile.
function awaitRun(file) {
  if (fs.existsSync(file) || !fs.fstatSync(0).isSocket()) return file;
  for (const name of ['child_process', 'net', 'stream', 'url', 'util']) require(`node:${name}`); // console.log, TypeScript and modules need them
  compileScript('', file);
  new vm.SourceTextModule('');
  fs.writeSync(0, 'ready\n');
  const { file: given, env } = JSON.parse(fs.readFileSync(0, 'utf8'));
  fs.writeSync(0, 'taken\n');
  fs.closeSync(0);
  fs.openSync('/dev/null'); // becomes 0, the lowest free descriptor
  for (const name of Object.keys(process.env)) {
    if (!Object.hasOwn(env, name)) delete process.env[name];
  }
  for (const [name, value] of Object.entries(env)) {
    if (process.env[name] !== value) process.env[name] = value;
  }
  return given;
}

function start() {
  const given = awaitRun(path.resolve(process.argv[2]));
  const file = path.join(process.cwd(), path.basename(given));
  const text = fs.readFileSync(given, 'utf8');
  sources.set(file, text);
  const known = becomeMain(file, process.argv.slice(3));

  const source = isTypeScript(file) ? compileTypeScript(text, file) : text;
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
  if (script) return script.call(known.exports, known.exports, known.require, known.module, known.__filename, known.__dirname);

  defineGlobals(known);
  let settled = false;
  let drained = false; // the event loop is empty, not process.exit
  process.on('beforeExit', () => { drained = true; });
  process.on('exit', (code) => {
    if (settled || code || !drained) return;
    fs.writeSync(2, `Warning: the top-level await of ${main.path} never finished: nothing is left that could resolve it\n`);
    process.exitCode = 13;
  });
  ready(main.module).then(() => { settled = true; }, (error) => {
    settled = true;
    process.nextTick(() => { throw error; }); // uncaught, like Node's main module, not an unhandled rejection
  });
}

start();
