// Runs one JavaScript or TypeScript file of a user inside the sandbox: node <flags> launch.cjs <file>
//
// The file lies in /tmp, but is run as if it were in the working directory: relative imports, __dirname and stack
// traces say /data/<name>. Both module systems work in one file: import, top-level await and import.meta as well as
// require, module and exports. Modules are linked here with vm.SourceTextModule, because a loader hook costs Node 20
// another thread (50 ms on every run) where this costs 3.
//
// TypeScript goes through esbuild's own binary in a child process: memory that hostile source makes it take is bounded
// by the sandbox, and its death is reported. JSX becomes React.createElement unless a pragma, or "jsx" in tsconfig.json,
// says otherwise. Decorators are the standard ones unless tsconfig.json or the source (see legacyDecorators) asks for the
// experimental ones.
'use strict';

const fs = require('node:fs');
const Module = require('node:module');
const path = require('node:path');
const vm = require('node:vm');

const launcher = __filename;
const packages = path.join(__dirname, 'node_modules');
const transpiled = new Map(); // path as the user knows it → {source, map}, for stack traces
const modules = new Map(); // path or specifier → promise of a vm.Module
const evaluations = new WeakMap(); // vm.Module → promise of its evaluation
const positions = new WeakMap(); // error → the first position in the user's own files

const isTypeScript = (file) => /\.([mc]?ts|tsx|jsx)$/.test(file);

// ---- TypeScript ----

// CompileError carries a message that is complete by itself: it is printed without a stack.
class CompileError extends Error {}

// legacyDecorators tells decorators written for TypeScript's experimental semantics, whose functions take
// (target, key, descriptor), from standard ones, which take (value, context).
function legacyDecorators(source) {
  return /@[A-Za-z_$]/.test(source) &&
    /\b(PropertyDescriptor|TypedPropertyDescriptor|(Class|Method|Property|Parameter)Decorator|propertyKey|reflect-metadata)\b/.test(source) &&
    !/\b(Class\w*)?DecoratorContext\b/.test(source);
}

function esbuild(source, file, format) {
  const { spawnSync } = require('node:child_process');
  const binary = path.join(packages, '@esbuild', `${process.platform}-${process.arch}`, 'bin', 'esbuild');
  let tsconfig = '';
  try {
    tsconfig = fs.readFileSync(path.join(process.cwd(), 'tsconfig.json'), 'utf8');
  } catch {}
  const compile = (loader, legacy) => {
    const args = [`--loader=${loader}`, `--sourcefile=${file}`, `--target=node${process.versions.node}`, '--sourcemap=inline',
      '--sources-content=false', '--charset=utf8', '--color=false', '--log-level=error', '--log-limit=10'];
    if (format) args.push(`--format=${format}`);
    if (tsconfig) args.push(`--tsconfig-raw=${tsconfig}`);
    else if (legacy) args.push('--tsconfig-raw={"compilerOptions":{"experimentalDecorators":true}}');
    const r = spawnSync(binary, args, { input: source, maxBuffer: 64 << 20, env: {} });
    const message = String(r.stderr ?? '').trim();
    if (r.error?.code === 'ENOBUFS') return { fatal: 'the compiled code is larger than 64 MB' };
    if (r.error) return { fatal: `esbuild does not start: ${r.error.message}` };
    if (r.signal || r.status === 2) { // killed from outside, or a Go program's own crash
      return { fatal: 'the compiler was killed: this source needs more memory to compile than the sandbox allows. Is something nested very deeply?' };
    }
    return r.status === 0 ? { code: r.stdout.toString() } : { error: message || `esbuild ended with code ${r.status}` };
  };

  // A .ts file may hold JSX, though "<T>x" then means something else: the more likely reading first.
  let loaders = ['ts', 'tsx'];
  if (/\.tsx$/.test(file)) loaders = ['tsx'];
  else if (!isTypeScript(file) || /\.jsx$/.test(file)) loaders = ['jsx'];
  else if (/<\/[\w.]*>|\/>/.test(source)) loaders.reverse();
  const legacy = legacyDecorators(source);
  let failure;
  for (const loader of loaders) {
    let r = compile(loader, legacy);
    if (r.error && !legacy && /experimental decorators/.test(r.error)) r = compile(loader, true);
    if (r.code !== undefined) return r.code;
    failure ??= r;
    if (r.fatal) break;
  }
  throw new CompileError(failure.error ?? `${file}: ${failure.fatal}`);
}

// compileTypeScript returns JavaScript for the file and remembers how to map its positions back.
function compileTypeScript(source, file, format) {
  const code = esbuild(source, file, format);
  const at = code.lastIndexOf('//# sourceMappingURL=');
  transpiled.set(file, { source, inlineMap: code.slice(code.indexOf('base64,', at) + 7) });
  return code.slice(0, at);
}

function originalPosition(file, line, column) {
  const entry = transpiled.get(file);
  if (!entry) return { line, column };
  entry.map ??= new Module.SourceMap(JSON.parse(Buffer.from(entry.inlineMap, 'base64').toString()));
  const found = entry.map.findEntry(line - 1, column - 1);
  return found.originalLine === undefined ? { line, column } : { line: found.originalLine + 1, column: found.originalColumn + 1 };
}

// ---- stack traces ----

const isInternal = (file) => !file || file === launcher || file.startsWith('node:');
const isPlumbing = (file) => file === launcher || /^node:(internal\/(modules|vm|process\/task_queues)|vm$)/.test(file ?? '');

Error.prepareStackTrace = (error, frames) => {
  const lines = [];
  let hidden = true; // frames below the user's own code are the launcher's
  for (const frame of frames.slice().reverse()) {
    const name = frame.getFileName();
    if (isPlumbing(name) || (hidden && isInternal(name))) continue;
    hidden = false;
    let text = String(frame);
    if (name && !isInternal(name)) {
      const { line, column } = originalPosition(name, frame.getLineNumber(), frame.getColumnNumber());
      text = text.replace(`${name}:${frame.getLineNumber()}:${frame.getColumnNumber()}`, `${name}:${line}:${column}`);
      if (!name.startsWith(packages) && error !== null && typeof error === 'object') positions.set(error, { file: name, line, column });
    }
    lines.unshift(`\n    at ${text}`);
  }
  let head;
  try {
    head = Error.prototype.toString.call(error);
  } catch {
    head = 'Error';
  }
  return head + lines.join('');
};

// sourceLine returns the user's line at a position with a caret under the column, or ''.
function sourceLine({ file, line, column }) {
  let source = transpiled.get(file)?.source ?? (file === main.path ? main.source : undefined);
  try {
    source ??= fs.readFileSync(file, 'utf8');
  } catch {
    return '';
  }
  const text = source.split('\n')[line - 1];
  if (text === undefined) return '';
  if (text.length > 300) return `${file}:${line}:${column}\n`;
  return `${file}:${line}:${column}\n${text}\n${text.slice(0, column - 1).replace(/[^\t]/g, ' ')}^\n\n`;
}

// An uncaught error is printed as Node prints it, but with the user's source. This event changes nothing for programs
// that handle uncaught exceptions themselves.
process.on('uncaughtExceptionMonitor', (error) => {
  if (process.listenerCount('uncaughtException') > 0) return;
  let text;
  if (error instanceof CompileError) {
    text = error.message;
  } else if (error instanceof Error || (typeof error === 'object' && error !== null && typeof error.stack === 'string')) {
    let shown = require('node:util').inspect(error); // also reads error.stack, which sets its position
    if (shown.startsWith('[')) shown = String(error.stack); // without frames, inspect puts it in brackets
    const at = positions.get(error);
    text = (at ? sourceLine(at) : '') + shown;
  } else if (main.module) {
    text = `Uncaught ${require('node:util').inspect(error)}`; // Node itself would show a line of the launcher or of compiled code
  } else {
    return;
  }
  fs.writeSync(2, text + '\n');
  process.exit(1);
});

// ---- modules ----

const extensions = ['.ts', '.tsx', '.mts', '.cts', '.js', '.mjs', '.cjs', '.jsx', '.json'];

const isFile = (file) => fs.statSync(file, { throwIfNoEntry: false })?.isFile() ?? false;

// resolveFile finds the file that a relative or absolute import means: as written, with an extension, as an index file, or
// a .ts file imported by its .js name.
function resolveFile(file) {
  if (isFile(file)) return fs.realpathSync(file);
  const candidates = extensions.map((e) => file + e);
  if (/\.[mc]?jsx?$/.test(file)) candidates.push(file.replace(/js(x?)$/, 'ts$1'), file.replace(/js$/, 'tsx'));
  candidates.push(...extensions.map((e) => path.join(file, 'index' + e)));
  const found = candidates.find(isFile);
  return found && fs.realpathSync(found);
}

function synthetic(identifier, exports, fallback) {
  const names = new Set(['default']);
  if (exports !== null && (typeof exports === 'object' || typeof exports === 'function')) {
    for (const name of Object.keys(exports)) names.add(name);
  }
  return new vm.SyntheticModule([...names], function () {
    for (const name of names) this.setExport(name, name === 'default' ? fallback : exports[name]);
  }, { identifier });
}

// native imports a package the way Node does, as seen from a directory: the user's own node_modules come first.
async function native(specifier, parent) {
  for (let dir = path.dirname(parent); ; dir = path.dirname(dir)) {
    if (fs.existsSync(path.join(dir, 'node_modules', ...specifier.split('/').slice(0, specifier.startsWith('@') ? 2 : 1)))) {
      const load = vm.compileFunction('return import(specifier)', ['specifier'], {
        filename: path.join(dir, 'import.js'), importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
      });
      return load(specifier);
    }
    if (dir === path.dirname(dir)) break;
  }
  return import(specifier);
}

function load(specifier, parent) {
  if (Module.isBuiltin(specifier)) {
    const exports = require(specifier);
    return cached(specifier, () => synthetic(specifier, exports, exports));
  }
  let file;
  if (/^\.{0,2}\//.test(specifier) || specifier === '.' || specifier === '..') file = path.resolve(path.dirname(parent), specifier.replace(/[?#].*$/, ''));
  else if (specifier.startsWith('file:')) file = require('node:url').fileURLToPath(specifier);
  if (file === undefined) {
    return cached(`${path.dirname(parent)}\0${specifier}`, async () => {
      const namespace = await native(specifier, parent);
      return synthetic(specifier, namespace, namespace.default);
    });
  }
  if (file === main.path && main.module) return main.module;
  const found = resolveFile(file);
  if (!found) {
    const error = new Error(`Cannot find module '${specifier}' imported from ${parent}`);
    error.code = 'ERR_MODULE_NOT_FOUND';
    throw error;
  }
  return cached(found, () => loadFile(found));
}

function cached(key, make) {
  let module = modules.get(key);
  if (module === undefined) {
    module = (async () => make())();
    modules.set(key, module);
  }
  return module;
}

async function loadFile(file) {
  const extension = path.extname(file);
  if (isTypeScript(file)) return textModule(compileTypeScript(fs.readFileSync(file, 'utf8'), file), file);
  if (extension === '.json') {
    const value = JSON.parse(fs.readFileSync(file, 'utf8').replace(/^\uFEFF/, ''));
    return synthetic(file, value, value);
  }
  if (extension === '.mjs') return textModule(fs.readFileSync(file, 'utf8'), file);
  if (extension === '.js' || extension === '') {
    const source = fs.readFileSync(file, 'utf8');
    if (!compileScript(source, file)) return textModule(source, file);
  } else if (extension !== '.cjs') {
    const namespace = await import(require('node:url').pathToFileURL(file));
    return synthetic(file, namespace, namespace.default);
  }
  const exports = Module.createRequire(file)(file);
  return synthetic(file, exports, exports);
}

// textModule makes a module of source. What V8 cannot parse goes to esbuild, which either knows it (JSX) or says exactly
// what is wrong and where.
function textModule(source, file) {
  try {
    return sourceTextModule(source, file);
  } catch (error) {
    if (transpiled.has(file)) throw error;
    return sourceTextModule(compileTypeScript(source, file), file);
  }
}

function sourceTextModule(source, file) {
  return new vm.SourceTextModule(source, {
    identifier: file,
    importModuleDynamically: dynamicImport,
    initializeImportMeta(meta) {
      meta.dirname = path.dirname(file);
      meta.filename = file;
      meta.url = require('node:url').pathToFileURL(file).href;
      meta.main = file === main.path;
      meta.resolve = (specifier) => {
        if (Module.isBuiltin(specifier)) return specifier.startsWith('node:') ? specifier : `node:${specifier}`;
        if (/^\.{0,2}\//.test(specifier)) return new URL(specifier, meta.url).href;
        return require('node:url').pathToFileURL(Module.createRequire(file).resolve(specifier)).href;
      };
    },
  });
}

let linking = Promise.resolve();

// ready links and evaluates a module. Links happen one after another: two of them may meet in a shared dependency.
async function ready(module) {
  if (module.status === 'unlinked' || module.status === 'linking') {
    const turn = linking.then(() => module.status === 'unlinked' ? module.link((specifier, parent) => load(specifier, parent.identifier)) : undefined);
    linking = turn.catch(() => {});
    await turn;
  }
  while (module.status === 'evaluating') await new Promise(setImmediate); // a module importing itself
  if (!evaluations.has(module)) evaluations.set(module, module.evaluate());
  await evaluations.get(module);
  return module;
}

async function dynamicImport(specifier, referrer) {
  return ready(await load(String(specifier), referrer?.identifier ?? main.path));
}

// compileScript compiles source as CommonJS. It returns undefined for anything that is no script.
function compileScript(source, file) {
  try {
    return vm.compileFunction(source.replace(/^#!/, '//'), ['exports', 'require', 'module', '__filename', '__dirname'], {
      filename: file, importModuleDynamically: (specifier) => dynamicImport(specifier, { identifier: file }),
    });
  } catch {
    return undefined;
  }
}

for (const extension of ['.ts', '.cts', '.tsx', '.jsx', '.mts']) {
  Module._extensions[extension] = (module, file) => {
    module._compile(compileTypeScript(fs.readFileSync(file, 'utf8'), file, 'cjs'), file);
  };
}

// ---- the program ----

const given = path.resolve(process.argv[2]);
const main = { path: path.join(process.cwd(), path.basename(given)), source: fs.readFileSync(given, 'utf8'), module: undefined };

function start() {
  process.argv = [process.execPath, main.path, ...process.argv.slice(3)];
  process.execArgv = [];

  const module = new Module(main.path, null);
  module.filename = main.path;
  module.paths = Module._nodeModulePaths(process.cwd());
  process.env.NODE_PATH = [process.env.NODE_PATH, packages].filter(Boolean).join(path.delimiter); // for require, here and in children
  Module._initPaths();
  const require_ = Module.createRequire(main.path);
  require_.main = module;
  process.mainModule = module;

  const source = isTypeScript(main.path) ? compileTypeScript(main.source, main.path) : main.source;
  // "await (x)" is a call of a function in a script and an await in a module: only the latter was ever meant.
  const asModule = isTypeScript(main.path) || /\.mjs$/.test(main.path) || /(^|[^.\w$])await\s*[([`+\-/]/.test(source);
  let script = asModule ? undefined : compileScript(source, main.path);
  if (!script) {
    try {
      main.module = textModule(source, main.path);
    } catch (error) {
      script = compileScript(source, main.path); // for example a return at the top level
      if (!script) throw error;
    }
  }
  if (script) return script.call(module.exports, module.exports, require_, module, main.path, process.cwd());

  // Globals rather than declarations in front of the source: a program may declare its own.
  const names = { require: require_, module, exports: module.exports, __filename: main.path, __dirname: process.cwd() };
  for (const [name, value] of Object.entries(names)) {
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
  }
  let settled = false;
  let drained = false; // the event loop ran empty, as opposed to a call of process.exit
  process.on('beforeExit', () => { drained = true; });
  process.on('exit', (code) => {
    if (settled || code || !drained) return;
    fs.writeSync(2, `Warning: the top-level await of ${main.path} never finished: nothing is left that could resolve it\n`);
    process.exitCode = 13;
  });
  ready(main.module).then(() => { settled = true; }, (error) => {
    settled = true;
    process.nextTick(() => { throw error; }); // uncaught, not an unhandled rejection: as Node does for its main module
  });
}

start();
