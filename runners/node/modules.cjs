// The common parts of the launcher (fresh runs) and the driver (interpreters): TypeScript, stack traces
// with the user's source, and modules.
//
// It links modules with vm.SourceTextModule, which takes 3 ms. A loader hook costs Node 20 another
// thread, 50 ms on every run.
//
// JSX becomes React.createElement unless a pragma or "jsx" in tsconfig.json changes that. Decorators
// are standard ones unless tsconfig.json or the source (see legacyDecorators) uses the experimental
// ones.
'use strict';

// Cells may redeclare globals such as Map and process: keep the original ones.
const { Buffer, Error, JSON, Map, Object, Promise, RegExp, Set, String, URL, WeakMap, process } = globalThis;

const fs = require('node:fs');
const Module = require('node:module');
const path = require('node:path');
const vm = require('node:vm');
const esbuild = require('./esbuild.cjs');

const packages = path.join(__dirname, 'node_modules');
const main = { path: undefined, module: undefined }; // the program, as the user knows it
const sources = new Map(); // path as the user knows it → source, where there is no such file
const transpiled = new Map(); // path as the user knows it → {source, inlineMap, unedit}, for stack traces
const modules = new Map(); // path or specifier → promise of a vm.Module
const loaded = new Map(); // path or specifier → vm.Module
const evaluations = new WeakMap(); // vm.Module → promise of its evaluation
const positions = new WeakMap(); // error → the first position in the user's own files

const isTypeScript = (file) => /\.([mc]?ts|tsx|jsx)$/.test(file);

// ---- TypeScript ----

// CompileError has a complete message, which is printed without a stack.
class CompileError extends Error {}

// legacyDecorators recognizes TypeScript's experimental decorators, which take (target, key,
// descriptor). Standard ones take (value, context).
function legacyDecorators(source) {
  return /@[A-Za-z_$]/.test(source) &&
    /\b(PropertyDescriptor|TypedPropertyDescriptor|(Class|Method|Property|Parameter)Decorator|propertyKey|reflect-metadata)\b/.test(source) &&
    !/\b(Class\w*)?DecoratorContext\b/.test(source);
}

// keepImports is for cells: a later one may use the import.
function compileWithEsbuild(source, file, { format, language, keepImports, meanwhile }) {
  let tsconfig = '';
  try {
    const config = path.join(process.cwd(), 'tsconfig.json');
    if (fs.existsSync(config)) tsconfig = fs.readFileSync(config, 'utf8'); // an exception takes 0.1 ms
  } catch {}
  const compile = (loader, legacy) => {
    const args = [`--loader=${loader}`, `--sourcefile=${file}`, `--target=node${process.versions.node}`, '--sourcemap=inline',
      '--sources-content=false', '--charset=utf8', '--color=false', '--log-level=error', '--log-limit=10'];
    if (format) args.push(`--format=${format}`);
    let options = tsconfig || `{"compilerOptions":{"experimentalDecorators":${legacy}}}`;
    if (keepImports) options = options.replace(/"compilerOptions"\s*:\s*\{/, '$&"verbatimModuleSyntax":true,');
    args.push(`--tsconfig-raw=${options}`);
    return esbuild.compile(args, source, meanwhile);
  };

  // A .ts file may hold JSX, where "<T>x" has another meaning: try the more likely one first.
  let loaders = ['ts', 'tsx'];
  if (/\.tsx$/.test(file)) loaders = ['tsx'];
  else if (language !== 'typescript' && (!isTypeScript(file) || /\.jsx$/.test(file))) loaders = ['jsx'];
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

// compileTypeScript returns JavaScript for the file and keeps the map of its positions. It may call
// options.meanwhile, even twice.
function compileTypeScript(source, file, options = {}) {
  const code = compileWithEsbuild(source, file, options);
  const at = code.lastIndexOf('//# sourceMappingURL=');
  transpiled.set(file, { source, inlineMap: code.slice(code.indexOf('base64,', at) + 7) });
  return code.slice(0, at);
}

function originalPosition(file, line, column) {
  const entry = transpiled.get(file);
  if (!entry) return { line, column };
  if (entry.unedit) column = entry.unedit(line, column);
  if (!entry.inlineMap) return { line, column };
  entry.map ??= new Module.SourceMap(JSON.parse(Buffer.from(entry.inlineMap, 'base64').toString()));
  const found = entry.map.findEntry(line - 1, column - 1);
  return found.originalLine === undefined ? { line, column } : { line: found.originalLine + 1, column: found.originalColumn + 1 };
}

// ---- stack traces ----

const isOurs = (file) => file !== undefined && file !== null && path.dirname(file) === __dirname;
const isInternal = (file) => !file || isOurs(file) || file.startsWith('node:');
const isPlumbing = (file) => isOurs(file) || /^node:(internal\/(modules|vm|process\/task_queues)|vm$)/.test(file ?? '');

Error.prepareStackTrace = (error, frames) => {
  const lines = [];
  let hidden = true; // frames below the user's code are the launcher's
  for (const frame of frames.slice().reverse()) {
    const name = frame.getFileName();
    if (isPlumbing(name) || (hidden && isInternal(name)) || frame.getLineNumber() < 1) continue; // line 0 is in front of a cell
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
  let source = transpiled.get(file)?.source ?? sources.get(file);
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

// describe formats an uncaught error as Node does, but with the user's source.
function describe(error) {
  const { inspect } = require('node:util');
  if (error instanceof CompileError) return error.message;
  if (!(error instanceof Error) && !(typeof error === 'object' && error !== null && typeof error.stack === 'string')) return `Uncaught ${inspect(error)}`;
  let shown = inspect(error); // also reads error.stack, which sets its position
  const { stack } = error;
  if (shown.startsWith(`[${stack}]`)) shown = stack + shown.slice(stack.length + 2); // without frames, inspect puts it in brackets
  const at = positions.get(error);
  return (at ? sourceLine(at) : '') + shown;
}

// ---- the session's packages ----

let session; // the node_modules of the session, if it may install packages
let nodePath = process.env.NODE_PATH; // as require knows it

// usePackages lets require find the packages of the session and of the runner, here and in children.
function usePackages() {
  const dir = process.env.SANDBOX_NODE_PACKAGES;
  const ours = [dir && path.join(dir, 'node_modules'), packages].filter(Boolean);
  const others = (process.env.NODE_PATH ?? '').split(path.delimiter).filter((d) => d && d !== session && !ours.includes(d));
  session = dir && ours[0];
  const wanted = [...others, ...ours].join(path.delimiter);
  if (process.env.NODE_PATH !== wanted) process.env.NODE_PATH = wanted;
  if (nodePath === wanted) return;
  nodePath = wanted;
  Module._initPaths();
}

// packageName returns the package of a bare specifier: "a/b" is in "a", "@a/b/c" in "@a/b".
function packageName(specifier) {
  return specifier.split('/').slice(0, specifier.startsWith('@') ? 2 : 1).join('/');
}

// hasPackage returns whether a node_modules of the session has a package. Reading a FIFO would hang.
function hasPackage(dir, name) {
  try {
    return isFile(path.join(dir, name, 'package.json'));
  } catch {
    return false; // such as a loop of links
  }
}

// Node never forgets that a package.json was missing: require and a failed import must not look for
// it in the session's packages before the package is installed.
const findPath = Module._findPath;
Module._findPath = function (request, paths, isMain) {
  if (session && paths && !/^(\/|\.{1,2}(\/|$))/.test(request)) {
    const name = packageName(request);
    const below = path.dirname(session) + path.sep;
    paths = paths.filter((dir) => !dir.startsWith(below) || !dir.endsWith('node_modules') || hasPackage(dir, name));
  }
  return findPath.call(Module, request, paths, isMain);
};

// ---- modules ----

const extensions = ['.ts', '.tsx', '.mts', '.cts', '.js', '.mjs', '.cjs', '.jsx', '.json'];

const isFile = (file) => fs.statSync(file, { throwIfNoEntry: false })?.isFile() ?? false;

// resolveFile finds the file of a relative or absolute import: as written, with an extension, as an
// index file, or a .ts file imported by its .js name.
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

// native imports a package as Node does from a directory: the project's, the session's, the runner's.
async function native(specifier, parent) {
  const name = packageName(specifier);
  for (let dir = path.dirname(parent); ; dir = path.dirname(dir)) {
    if (fs.existsSync(path.join(dir, 'node_modules', name))) return importFrom(dir, specifier);
    if (dir === path.dirname(dir)) break;
  }
  // From node_modules itself, Node looks for no package.json of the importer.
  return session && hasPackage(session, name) ? importFrom(session, specifier) : import(specifier);
}

// importFrom imports a package as a module in dir does.
function importFrom(dir, specifier) {
  const load = vm.compileFunction('return import(specifier)', ['specifier'], {
    filename: path.join(dir, 'import.js'), importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  });
  return load(specifier);
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
    const error = new Error(`Cannot find module '${specifier}' imported from ${/<cell \d+>$/.exec(parent)?.[0] ?? parent}`);
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
    module.then((m) => loaded.set(key, m), () => modules.delete(key)); // a later cell may import a corrected file
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

// textModule makes a module from source. If V8 cannot parse it, esbuild either supports it (JSX) or
// reports what is wrong and where.
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
    initializeImportMeta: (meta) => importMeta(meta, file),
  });
}

function importMeta(meta, file) {
  meta.dirname = path.dirname(file);
  meta.filename = file;
  meta.url = require('node:url').pathToFileURL(file).href;
  meta.main = file === main.path;
  meta.resolve = (specifier) => {
    if (Module.isBuiltin(specifier)) return specifier.startsWith('node:') ? specifier : `node:${specifier}`;
    if (/^\.{0,2}\//.test(specifier)) return new URL(specifier, meta.url).href;
    return require('node:url').pathToFileURL(Module.createRequire(file).resolve(specifier)).href;
  };
  return meta;
}

let linking = Promise.resolve();

// ready links and evaluates a module. It links one at a time, because two may share a dependency.
async function ready(module) {
  if (module.status === 'unlinked' || module.status === 'linking') {
    const turn = linking.then(() => module.status === 'unlinked' ? module.link((specifier, parent) => load(specifier, parent.identifier)) : undefined);
    linking = turn.catch(() => {});
    await turn;
  }
  if (module === main.module) esbuild.waiting.close(); // it does not wait for code
  while (module.status === 'evaluating') await new Promise(setImmediate); // a module importing itself
  if (!evaluations.has(module)) evaluations.set(module, module.evaluate());
  await evaluations.get(module);
  return module;
}

async function dynamicImport(specifier, referrer) {
  try {
    return await ready(await load(String(specifier), referrer?.identifier ?? main.path));
  } catch (error) {
    forgetFailures();
    throw error;
  }
}

// forgetFailures allows another import of modules that failed, and of those that import them.
function forgetFailures() {
  for (const [key, module] of loaded) {
    if (['linked', 'evaluating', 'evaluated'].includes(module.status)) continue;
    modules.delete(key);
    loaded.delete(key);
  }
}

// compileScript compiles source as CommonJS. It returns undefined for anything else.
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
    module._compile(compileTypeScript(fs.readFileSync(file, 'utf8'), file, { format: 'cjs' }), file);
  };
}


// becomeMain makes a path the main program: process.argv, require.main and require are as for
// node <path>. It returns the variables of a CommonJS module.
function becomeMain(file, args) {
  main.path = file;
  process.argv = [process.execPath, file, ...args];
  process.execArgv = [];
  const module = new Module(file, null);
  module.filename = file;
  module.paths = Module._nodeModulePaths(process.cwd());
  usePackages();
  const require_ = Module.createRequire(file);
  require_.main = module;
  process.mainModule = module;
  return { require: require_, module, exports: module.exports, __filename: file, __dirname: path.dirname(file) };
}

// defineGlobals defines require and its kind for programs that are not CommonJS. They are globals, not
// declarations before the source, so that a program may declare its own.
function defineGlobals(values) {
  for (const [name, value] of Object.entries(values)) {
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
  }
}

module.exports = {
  CompileError, becomeMain, compileScript, compileTypeScript, defineGlobals, describe, dynamicImport, importMeta,
  isTypeScript, main, positions, ready, sourceLine, sources, textModule, transpiled, usePackages,
};
