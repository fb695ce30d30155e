// Runs a user's JavaScript or TypeScript cell by cell: node <flags> driver.cjs javascript|typescript
//
// The agent starts it and exchanges lines with it on descriptor 3; see internal/agent. It needs
// --expose-internals for the REPL's parser (cell.cjs) and to unwind interrupted code (interrupt.cjs).
//
// Declarations, imports and the working directory persist. Each cell has its own stdout and stderr:
// pipes that the agent reads until the cell ends. The driver shows the value of a cell's last
// expression, after its promise resolves. What a cell does not await continues, and its errors do not
// end the interpreter. What it prints is late output: the next cell's stdout has it, between two lines
// that mark it.
'use strict';

// Cells may redeclare globals such as Map and process: keep the original ones.
const { Array, ArrayBuffer, Atomics, Buffer, Date, Error, Int32Array, JSON, Map, Math, Number, Object, Promise, Set, SharedArrayBuffer, String, SyntaxError, TypeError, Uint8Array, console, process, setImmediate, setTimeout } = globalThis;

const { AsyncLocalStorage } = require('node:async_hooks');
const fs = require('node:fs');
const path = require('node:path');
const vm = require('node:vm');
const { inspect, types } = require('node:util');
const { Writable } = require('node:stream');
const { CompileError, becomeMain, compileTypeScript, defineGlobals, describe, dynamicImport, importMeta, positions, sourceLine, sources, transpiled, usePackages } = require('./modules.cjs');
const esbuild = require('./esbuild.cjs');
const { consoleTableOf, tableOf } = require('./tables.cjs');

const CHANNEL = 3;
const REMEMBERED = 1000; // cells whose source is kept, for stack traces
const MAX_LATE = 8 << 10; // bytes of late output that are kept
const MAX_DISPLAYS = 64; // per cell, the agent's limit
const MAX_DISPLAY = 16 << 20; // bytes of one, the agent's limit
const MAX_MARKUP = 256 << 10; // characters of a table
const MAX_TABLE = 1000; // rows that console.table prints
const PATIENCE = 1000; // ms to wait for the agent; after that, order may be lost, but no output
const BUNDLE = 'application/vnd.mcp-code-sandbox.bundle+json';
const language = process.argv[2];
const Timeout = setTimeout(() => {}).unref().constructor;
const Immediate = setImmediate(() => {}).constructor;
const directory = process.cwd();
const cells = new AsyncLocalStorage(); // the cell that started the running code
const builtins = new Set(Object.getOwnPropertyNames(globalThis));
let current; // the present cell: {number, name, dir, shown, used, waited, stdout, stderr, inLine}
let last = 0; // the number of the last cell

// ---- output ----

function writeFully(fd, data) {
  for (let at = 0; at < data.length;) {
    try {
      at += fs.writeSync(fd, data, at);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
}

function tell(line) {
  writeFully(CHANNEL, Buffer.from(line + '\n'));
}

// print writes to a stream of the present cell. Output of an earlier cell is late.
function print(stream, data) {
  if (isLate()) return keepLate(data);
  if (data.length === 0) return;
  settle(stream);
  if (stream === 'stdout') {
    current.inLine = data[data.length - 1] !== 10;
    recorded?.push(Buffer.from(data));
  }
  try {
    writeFully(current[stream], data);
  } catch {
    // the reader is gone
  }
}

// settle waits until the agent has read the other stream, if that was used last. The agent removes the
// file then. A cell that changes streams very often stops waiting.
function settle(stream) {
  const cell = current;
  const before = cell.used;
  cell.used = stream;
  if (before === undefined || before === stream || cell.waited > PATIENCE) return;
  const file = path.join(cell.dir, 'settle');
  try {
    fs.writeFileSync(file, '');
    tell(`settle ${cell.number} settle`);
    cell.waited += awaitRemoval(file);
  } catch {
    cell.waited = Infinity; // the directory is gone
  }
}

// awaitRemoval waits until the agent has removed a file, and returns how many ms that took.
function awaitRemoval(file) {
  const start = Date.now();
  for (let i = 0; fs.existsSync(file) && Date.now() - start < PATIENCE; i++) {
    if (i > 50) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 0.1);
  }
  return Date.now() - start;
}

// isLate returns whether a cell that has ended started the running code.
function isLate() {
  const from = cells.getStore();
  return current === undefined || (from !== undefined && from !== current);
}

let late = { pieces: [], size: 0, omitted: 0 };

function keepLate(data) {
  const kept = Buffer.from(data.subarray(0, Math.max(0, MAX_LATE - late.size)));
  late.omitted += data.length - kept.length;
  if (kept.length === 0) return;
  late.size += kept.length;
  late.pieces.push([cells.getStore()?.number ?? last, kept]);
}

// printLate writes late output to a cell's stdout, by cell, between lines that mark it.
function printLate(cell) {
  const { pieces, omitted } = late;
  if (pieces.length === 0 && omitted === 0) return;
  late = { pieces: [], size: 0, omitted: 0 };
  const texts = new Map();
  for (const [number, data] of pieces) texts.set(number, Buffer.concat([texts.get(number) ?? Buffer.alloc(0), data]));
  let text = cell.inLine ? '\n' : '';
  for (const [number, data] of texts) text += `[late output of cell ${number}]\n${data.toString().replace(/\n?$/, '\n')}`;
  if (omitted > 0) text += `[${omitted} bytes of late output were left out]\n`;
  try {
    writeFully(cell.stdout, Buffer.from(`${text}[end of late output]\n`));
  } catch {
    // the reader is gone
  }
}

// output makes process.stdout and process.stderr. Their write bypasses Node's streams, which do not
// survive an interruption. They cannot be closed.
function output(stream, fd) {
  const out = new Writable({ decodeStrings: false });
  out.fd = fd;
  out._type = 'pipe';
  out._isStdio = true;
  out.write = (data, encoding, callback) => {
    if (typeof data === 'string') data = Buffer.from(data, typeof encoding === 'string' ? encoding : 'utf8');
    else if (!ArrayBuffer.isView(data)) throw Object.assign(new TypeError('The "chunk" argument must be of type string or an instance of Buffer, TypedArray or DataView'), { code: 'ERR_INVALID_ARG_TYPE' });
    print(stream, data instanceof Uint8Array ? data : new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    const done = typeof encoding === 'function' ? encoding : callback;
    if (typeof done === 'function') process.nextTick(done);
    return true;
  };
  out.end = (data, encoding, callback) => {
    if (data !== undefined && data !== null && typeof data !== 'function') out.write(data, encoding);
    const done = [data, encoding, callback].find((f) => typeof f === 'function');
    if (done) process.nextTick(done);
    return out;
  };
  out.destroy = out.destroySoon = () => out;
  Object.defineProperty(process, stream, { value: out, configurable: true, enumerable: true, writable: true });
  return out;
}

// point redirects a descriptor. Node has no dup2, but open returns the lowest free descriptor. If another
// thread takes that first, only writes to the descriptor by its number are lost.
function point(fd, file) {
  try {
    fs.closeSync(fd);
  } catch {
    // a cell closed it
  }
  const below = [];
  let opened = fs.openSync(file, fs.constants.O_WRONLY);
  for (; opened < fd; opened = fs.openSync(file, fs.constants.O_WRONLY)) below.push(opened);
  if (opened > fd) below.push(opened);
  below.forEach((extra) => fs.closeSync(extra));
}

// The driver does not use 1 and 2 for the pipes: a child may make those non-blocking.
function openOutput(cell, dir) {
  const pipes = ['stdout', 'stderr'].map((name) => path.join(dir, name));
  [cell.stdout, cell.stderr] = pipes.map((pipe) => fs.openSync(pipe, fs.constants.O_WRONLY));
  pipes.forEach((pipe, i) => point(i + 1, pipe));
}

function closeOutput(cell) {
  for (const fd of [1, 2]) point(fd, '/dev/null');
  for (const stream of ['stdout', 'stderr']) {
    const fd = cell[stream];
    cell[stream] = undefined;
    if (fd !== undefined) fs.closeSync(fd);
  }
}

// applyEnvironment sets the variables of one cell, and returns a function that reverts them.
function applyEnvironment(dir) {
  const file = path.join(dir, 'env');
  if (!fs.existsSync(file)) return () => {};
  const given = fs.readFileSync(file, 'utf8').split('\0').filter((line) => line !== '').map((line) => {
    const at = line.indexOf('=');
    return [line.slice(0, at), line.slice(at + 1)];
  });
  const before = given.map(([name]) => process.env[name]);
  for (const [name, value] of given) process.env[name] = value;
  usePackages();
  return () => given.forEach(([name, value], i) => {
    if (process.env[name] !== value) return; // the cell has changed it
    if (before[i] === undefined) delete process.env[name];
    else process.env[name] = before[i];
  });
}

// ---- values ----

// show shows the value of a cell's last expression. A timer says nothing to anybody.
function show(cell, value) {
  if (value === undefined || !types.isProxy(value) && (value instanceof Timeout || value instanceof Immediate)) return;
  const type = imageType(value);
  if (type !== undefined && display(cell, type, value)) return;
  const text = inspect(value, { showProxy: true, maxStringLength: Infinity }) + '\n';
  process.stdout.write(text);
  displayTable(cell, () => tableOf(value), text);
}

const SIGNATURES = [['image/png', /^89504e470d0a1a0a/], ['image/jpeg', /^ffd8ff/], ['image/gif', /^47494638(37|39)61/], ['image/webp', /^52494646.{8}57454250/]];

// imageType returns the type of an image that is in memory, or undefined.
function imageType(value) {
  if (!types.isUint8Array(value)) return undefined;
  const start = Buffer.from(value.buffer, value.byteOffset, Math.min(value.byteLength, 12)).toString('hex');
  return SIGNATURES.find(([, signature]) => signature.test(start))?.[0];
}

// displayTable lets people see a table instead of its text, which has been printed.
function displayTable(cell, render, text) {
  if (process.stdout !== stdout || text.length > MAX_MARKUP) return;
  let html;
  try {
    html = render();
  } catch {
    return; // a value that cannot be looked at
  }
  if (html === undefined || html.length > MAX_MARKUP) return;
  display(cell, BUNDLE, Buffer.from(JSON.stringify({ 'text/html': html, 'text/plain': text })));
}

// display hands something to the agent, waits until it has its place in the output, and returns
// whether it was handed over.
function display(cell, type, data) {
  if (cell !== current || isLate() || cell.shown >= MAX_DISPLAYS || data.byteLength > MAX_DISPLAY) return false;
  const name = `display-${++cell.shown}`;
  const file = path.join(cell.dir, name);
  try {
    fs.writeFileSync(file, data);
    tell(`display ${cell.number} ${type} ${name}`);
  } catch {
    return false; // no space is left, or the directory is gone
  }
  awaitRemoval(file);
  return true;
}

// console.table also shows its table to people, and prints no more than can be read.
const printTable = console.table;
let recorded; // what console.table prints to stdout, while it does
console.table = function table(data, columns) {
  const cell = current;
  if (cell === undefined || isLate()) return printTable.call(this ?? console, data, columns);
  const more = Array.isArray(data) ? data.length - MAX_TABLE : 0;
  recorded = [];
  let text;
  try {
    printTable.call(this ?? console, more > 0 ? Array.prototype.slice.call(data, 0, MAX_TABLE) : data, columns);
    if (more > 0) console.log(`… ${more} more rows`);
  } finally {
    text = Buffer.concat(recorded).toString();
    recorded = undefined;
  }
  // Text that a getter has printed comes first, and stays.
  if (/^\s*┌/.test(text)) displayTable(cell, () => consoleTableOf(data, columns), text);
  return undefined;
};

// ---- cells ----

// withBuiltins runs a function with the original globals: the parser needs them even if a cell has
// redeclared Map or Array.
function withBuiltins(f) {
  const shadows = [];
  for (const [name, builtin] of shadowed) {
    shadows.push([name, Object.getOwnPropertyDescriptor(globalThis, name)]);
    Object.defineProperty(globalThis, name, builtin);
  }
  try {
    return f();
  } finally {
    for (const [name, shadow] of shadows) Object.defineProperty(globalThis, name, shadow);
  }
}

const shadowed = new Map(); // name → descriptor of the built-in that a cell redeclared

function compile(source, name) {
  const { rewrite, wrap } = require('./cell.cjs');
  let rewritten;
  if (language === 'typescript') {
    rewritten = rewrite(compileTypeScript(source, name, { language, keepImports: true }), source);
  } else {
    try {
      rewritten = rewrite(source);
    } catch (error) {
      // The compiler either supports it (JSX) or reports what is wrong and where.
      if (!fs.existsSync(esbuild.binary)) throw syntaxError(error, name);
      rewritten = rewrite(compileTypeScript(source, name, { keepImports: true }), source);
    }
  }
  transpiled.set(name, { ...transpiled.get(name), source, unedit: rewritten.unedit });
  const options = { filename: name, importModuleDynamically: (specifier) => dynamicImport(specifier, { identifier: path.join(directory, name) }) };
  return {
    rewritten,
    functions: rewritten.functions && new vm.Script(rewritten.functions, options),
    body: new vm.Script(wrap(rewritten), { ...options, lineOffset: -1 }),
  };
}

function syntaxError(error, name) {
  if (!error.loc) return error;
  const at = { file: name, line: error.loc.line, column: error.loc.column + 1 };
  return new CompileError(`${sourceLine(at)}SyntaxError: ${error.message.replace(/ \(\d+:\d+\)$/, '')}`);
}

// declare prepares the globals that a cell assigns to.
function declare({ globals, vars, fresh, strict }) {
  const undeclared = { value: undefined, writable: true, configurable: true, enumerable: true };
  for (const name of globals) {
    const known = Object.getOwnPropertyDescriptor(globalThis, name);
    if (known === undefined) {
      if (strict || vars.has(name)) Object.defineProperty(globalThis, name, undeclared);
    } else if (builtins.has(name) && known.configurable && !shadowed.has(name)) {
      shadowed.set(name, known);
    }
    if (known?.configurable && !known.writable) { // such as crypto, which Node makes on first use
      Object.defineProperty(globalThis, name, { ...undeclared, value: globalThis[name] });
    }
    if (fresh.has(name)) globalThis[name] = undefined;
  }
}

function importer(cell, imports) {
  return async (i) => {
    const { specifier, bindings, line, column } = imports[i];
    try {
      const { namespace } = await dynamicImport(specifier, { identifier: path.join(directory, cell.name) });
      for (const [, imported] of bindings) {
        // In TypeScript it may be the name of a type.
        if (language === 'typescript' || imported === undefined || imported in namespace) continue;
        throw new SyntaxError(`The requested module '${specifier}' does not provide an export named '${imported}'`);
      }
      return namespace;
    } catch (error) {
      if (typeof error === 'object' && error !== null) {
        void error.stack; // sets its position if it has one
        if (!positions.has(error)) positions.set(error, { file: cell.name, line, column });
      }
      throw error;
    }
  };
}

async function run(cell, source) {
  let code = 1;
  try {
    const { rewritten, functions, body } = withBuiltins(() => compile(source, cell.name));
    declare(rewritten);
    functions?.runInThisContext();
    const value = await body.runInThisContext()(importer(cell, rewritten.imports));
    for (let i = 0; i < 2; i++) await new Promise((resolve) => setImmediate(resolve)); // work that need not wait happens in this cell
    if (cell === current) show(cell, value); // an error of a promise may have ended it
    code = Number(process.exitCode ?? 0) & 0xff;
  } catch (error) {
    if (error?.signal === 'SIGINT') await new Promise((resolve) => setTimeout(resolve, 100)); // a child was interrupted, and so will this cell be
    report(cell, error);
  }
  process.exitCode = undefined;
  finish(cell, code);
}

function report(cell, error) {
  if (cell === current) cells.exit(() => print('stderr', textOf(error)));
}

function textOf(error) {
  try {
    return Buffer.from(describe(error) + '\n');
  } catch {
    return Buffer.from('Uncaught error that cannot be shown\n');
  }
}

// finish ends a cell once. It can be called again if it was interrupted.
function finish(cell, code) {
  if (cell !== current) return;
  if (cell.stdout !== undefined) printLate(cell);
  closeOutput(cell);
  cell.restore?.();
  cell.restore = undefined;
  tell(`result ${cell.number} ${code}`);
  current = undefined;
  channel.ref();
}

function execute(cell, dir) {
  if (cell !== current) return; // interrupted already
  if (!unwound) channel.unref(); // so that the cell ends when nothing is pending
  try {
    openOutput(cell, dir);
    printLate(cell);
    cell.restore = applyEnvironment(dir);
    if (fs.existsSync(path.join(dir, 'interrupted'))) return interrupt(); // before there was a cell
    const source = fs.readFileSync(path.join(dir, 'code'), 'utf8').replace(/^#!/, '//');
    sources.set(cell.name, source);
    for (const known of [sources, transpiled]) known.delete(`<cell ${cell.number - REMEMBERED}>`);
    if (!process.listeners('uncaughtException').includes(uncaught)) process.on('uncaughtException', uncaught);
    cells.run(cell, run, cell, source);
  } catch (error) {
    report(cell, error);
    finish(cell, 126);
  }
}

// ---- errors and interrupts ----

// An uncaught error ends the cell that caused it, if that still runs.
function uncaught(error) {
  if (process.listenerCount('uncaughtException') > 1) return; // the user's own code handles it
  if (isLate()) return keepLate(textOf(error));
  const cell = current;
  report(cell, error);
  if (cells.getStore() === cell) finish(cell, 1);
}

function interrupt() {
  if (current === undefined) return;
  current.used = 'stderr'; // do not settle: see unwind
  cells.exit(() => print('stderr', Buffer.from('Interrupted.\n')));
  finish(current, 130);
}

// answer handles a question of interrupt.cjs. If it is late, unwind has interrupted the cell already.
function answer(question) {
  if (question > interrupted) interrupt();
  interrupted = Math.max(interrupted, question);
  Atomics.add(answers, 0, 1);
  Atomics.notify(answers, 0);
}

// unwind runs on top of JavaScript that blocks interrupt, and returns whether to end that now. It must
// not use Atomics.wait, which the user's code may be in.
function unwind(question, attempt) {
  if (question > interrupted) interrupt();
  interrupted = Math.max(interrupted, question);
  const innermost = framesBelow().find((file) => file !== ''); // built-in functions have no file
  const ready = innermost !== undefined && !/^node:(internal\/)?(async_hooks|promise_hooks|process|timers)/.test(innermost);
  if (ready) {
    unwound = true; // in a timer, this breaks Node's count of timers: pending ones may seem gone
    require('internal/async_hooks').clearAsyncIdStack();
  }
  Atomics.store(answers, 2, ready ? END : AGAIN);
  Atomics.notify(answers, 2);
  const deadline = Date.now() + 1000;
  while (Atomics.load(answers, 1) < attempt && Date.now() < deadline);
}

const [AGAIN, END] = [1, 2];

// framesBelow returns the files of the interrupted functions, the innermost first.
function framesBelow() {
  const prepare = Error.prepareStackTrace;
  Error.prepareStackTrace = (_, frames) => frames;
  const { stack } = new Error();
  Error.prepareStackTrace = prepare;
  return stack.map((frame) => String(frame.getFileName() ?? '')).slice(3); // this function, unwind and the inspector's code
}

const answers = new Int32Array(new SharedArrayBuffer(12));
let interrupted = 0; // the last question of interrupt.cjs
let unwound = false;

// ---- the interpreter ----

const stdout = output('stdout', 1);
output('stderr', 2);
for (const fd of [1, 2]) point(fd, '/dev/null');
const file = path.join(directory, language === 'typescript' ? 'cell.ts' : 'cell.js');
defineGlobals({ ...becomeMain(file, []), import_meta: importMeta({}, file) });
Object.defineProperty(globalThis, '__unwind', { value: unwind });
// Node may abort if it ends while interrupt.cjs waits: report the exit and end at once.
process.reallyExit = (code) => {
  tell(`exit ${Number(code ?? process.exitCode ?? 0) & 0xff}`);
  process.kill(process.pid, 'SIGKILL');
};
process.on('SIGINT', interrupt); // a cell may have used breakOnSigint
process.on('uncaughtException', uncaught);
process.on('beforeExit', () => {
  if (current === undefined) return;
  cells.exit(() => print('stderr', Buffer.from(`Warning: the top-level await of ${current.name} never finished: nothing is left that could resolve it\n`)));
  finish(current, 13);
});

// Cells run once the thread watches, because otherwise code that does not return could not be
// interrupted. The thread opens descriptors, so it starts after 1 and 2 are taken.
const watching = new Promise((resolve) => {
  const { Worker } = require('node:worker_threads');
  const worker = new Worker(path.join(__dirname, 'interrupt.cjs'), {
    workerData: answers, execArgv: [], resourceLimits: { maxOldGenerationSizeMb: 16, maxYoungGenerationSizeMb: 2 },
  });
  worker.on('message', (question) => question === 0 ? resolve() : answer(question));
  worker.unref();
});

let pending = '';
const channel = new (require('node:net').Socket)({ fd: CHANNEL, readable: true, writable: false });
channel.setEncoding('utf8');
channel.on('data', (data) => {
  const lines = (pending + data).split('\n');
  pending = lines.pop();
  for (const line of lines) {
    const [verb, number, dir] = line.split(' ');
    if (verb !== 'execute') continue;
    const cell = current = { number: Number(number), name: `<cell ${number}>`, dir, shown: 0, used: undefined, waited: 0, stdout: undefined, stderr: undefined, inLine: false };
    last = cell.number;
    recorded = undefined; // an interrupted console.table
    watching.then(() => setImmediate(execute, cell, dir)); // not from here, because a stream does not survive an interruption
  }
});
channel.on('end', () => process.exit(0));
tell('ready');
