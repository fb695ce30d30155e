// Rewrites the source of a cell so that what it declares lives on in later cells and may be declared again, whatever it was.
//
// V8's own REPL mode lets a const be declared again as a const, but not as a let, a function or an import, and knows no
// static import. So declarations of the top level become assignments to globals, function declarations a script of their own
// (they are hoisted, and are global by themselves), static imports awaited calls in front of the first line, and a last
// expression a return. The rest stays where it is: lines never move, and columns can be computed back. The parser is the one
// that Node's REPL uses.
'use strict';

const { Array, JSON, Map, Object, Set } = globalThis;

let acorn;

function parse(source) {
  acorn ??= require('internal/deps/acorn/acorn/dist/acorn');
  const options = {
    ecmaVersion: 'latest', sourceType: 'script', locations: true, allowHashBang: true,
    allowAwaitOutsideFunction: true, allowImportExportEverywhere: true, allowReturnOutsideFunction: true, allowSuperOutsideMethod: false,
  };
  try {
    return { source, ast: acorn.parse(source, options) };
  } catch (error) {
    // Older parsers do not know "with { type: 'json' }", no parser here the older "assert". Modules are told by their names anyway.
    const without = source.replace(/(\bfrom\s*(?:'[^'\n]*'|"[^"\n]*")\s*)((?:with|assert)\s*\{[^{}]*\})/g, (_, before, attributes) => before + blank(attributes));
    if (without === source) throw error;
    return { source: without, ast: acorn.parse(without, options) };
  }
}

const blank = (text) => text.replace(/[^\r\n\u2028\u2029]/g, ' ');

// rewrite returns the two scripts of a cell, and what must be known to run them. Of what a compiler made, original is the source
// that the user wrote: names that are not in it are the compiler's own.
function rewrite(text, original) {
  const parsed = parse(text);
  const source = parsed.source;
  const body = parsed.ast.body;
  const written = original === undefined ? undefined : new Set(original.match(/[\p{ID_Start}$_][\p{ID_Continue}$]*/gu));
  const merging = new Set(Array.from((original ?? '').matchAll(/\b(?:enum|namespace|module)\s+([\w$]+)/g), (m) => m[1]));
  const result = {
    functions: undefined, // script with the function declarations
    body: undefined, // source of an async function's body
    imports: [], // {specifier, names, bindings: [[local, imported]], line, column}; imported is undefined for the namespace
    globals: new Set(), // names that the cell declares
    vars: new Set(), // those that are undefined, rather than unknown, before they are assigned
    fresh: new Set(), // those of them whose old value must go: compiled enums and namespaces add to what is there
    strict: body[0]?.directive === 'use strict',
    unedit: undefined, // (line, column) as run → column as written
  };
  const edits = []; // {at, end, text}; only what stays within one line changes its length
  const replace = (at, end, text) => edits.push({ at, end, text });
  const insert = (at, text) => replace(at, at, text);
  const expressionEnd = (node) => source[node.end - 1] === ';' ? node.end - 1 : node.end;
  const functions = [];

  // Temporaries of the compiler are each cell's own; its helpers are the same in all.
  const isPrivate = (names) => written !== undefined && names.every((name) => !written.has(name) && !name.startsWith('__'));

  function declaration(node, inList) {
    const names = node.declarations.flatMap((d) => patternNames(d.id));
    if (!['var', 'let', 'const'].includes(node.kind) || isPrivate(names)) return;
    for (const name of names) {
      result.globals.add(name);
      if (node.kind === 'var') result.vars.add(name);
      if (merging.has(name)) result.fresh.add(name);
    }
    replace(node.start, node.start + node.kind.length, (inList ? ';' : ' ').padEnd(node.kind.length));
    if (inList === undefined) return; // the head of a loop
    for (const d of node.declarations) {
      if (d.init === null) {
        if (node.kind === 'let') insert(d.end, ' = void 0');
      } else if (d.id.type !== 'Identifier') {
        insert(d.start, '(');
        insert(d.end, ')');
      }
    }
  }

  // nestedVars finds the vars of statements inside statements: they are the cell's, too.
  function nestedVars(node, parent, key) {
    if (node.type === 'VariableDeclaration' && node.kind === 'var') {
      const isHead = /^For/.test(parent.type) && key !== 'body';
      declaration(node, isHead ? undefined : key === 'body' && parent.type === 'BlockStatement' || key === 'consequent' && parent.type === 'SwitchCase');
    }
    if (/Function|^Class|Expression$/.test(node.type)) return;
    for (const [key, value] of Object.entries(node)) {
      for (const child of Array.isArray(value) ? value : [value]) {
        if (typeof child?.type === 'string') nestedVars(child, node, key);
      }
    }
  }

  function statement(node) {
    switch (node.type) {
      case 'ImportDeclaration':
        result.imports.push(importOf(node));
        for (const s of node.specifiers) result.globals.add(s.local.name);
        return replace(node.start, node.end, blank(source.slice(node.start, node.end)));
      case 'ExportNamedDeclaration':
        if (!node.declaration) return replace(node.start, node.end, blank(source.slice(node.start, node.end)));
        replace(node.start, node.start + 6, blank('export'));
        return statement(node.declaration);
      case 'ExportAllDeclaration':
        return replace(node.start, node.end, blank(source.slice(node.start, node.end)));
      case 'ExportDefaultDeclaration': {
        replace(node.start, node.start + 6, ';     ');
        const keyword = source.indexOf('default', node.start + 6);
        replace(keyword, keyword + 7, blank('default'));
        if (/Declaration$/.test(node.declaration.type) && node.declaration.id) return statement(node.declaration);
        insert(keyword + 7, '(');
        return insert(expressionEnd(node), ');');
      }
      case 'FunctionDeclaration':
        functions.push(node);
        result.globals.add(node.id.name);
        return replace(node.start, node.end, blank(source.slice(node.start, node.end)));
      case 'ClassDeclaration':
        if (isPrivate([node.id.name])) return undefined;
        result.globals.add(node.id.name);
        insert(node.start, `;${node.id.name} = `);
        return insert(node.end, ';');
      case 'VariableDeclaration':
        return declaration(node, true);
      default:
        return nestedVars(node, { type: 'Program' }, 'statement');
    }
  }

  body.forEach(statement);
  const last = body.findLast((node) => !/^(Empty|FunctionDecl|Import|Export)/.test(node.type));
  const isHelper = written !== undefined && /^(?:[\w$]+ = )?__\w+\(/.test(source.slice(last?.start)) && !written.has(/__\w+/.exec(source.slice(last.start))[0]);
  if (last?.type === 'ExpressionStatement' && last.directive !== 'use strict' && !isHelper) {
    insert(last.start, ';return (');
    insert(expressionEnd(last), ')');
  }
  if (/\bimport\s*\.\s*meta\b/.test(source)) {
    metaProperties(parsed.ast, (node) => replace(node.start, node.end, 'import_meta'.padEnd(node.end - node.start)));
  }

  edits.sort((a, b) => a.at - b.at || a.end - b.end);
  if (functions.length > 0) {
    let script = blank(source);
    for (const { start, end } of functions) script = script.slice(0, start) + apply(source, edits.filter((e) => e.text.startsWith('import_meta')), start, end) + script.slice(end);
    result.functions = script;
  }
  result.body = apply(source, edits, 0, source.length);
  result.unedit = unedit(source, edits);
  return result;
}

function importOf(node) {
  const bindings = node.specifiers.map((s) => {
    if (s.type === 'ImportNamespaceSpecifier') return [s.local.name, undefined];
    return [s.local.name, s.type === 'ImportDefaultSpecifier' ? 'default' : s.imported.name ?? s.imported.value];
  });
  return { specifier: node.source.value, bindings, line: node.loc.start.line, column: node.loc.start.column + 1 };
}

function patternNames(pattern) {
  switch (pattern?.type) {
    case 'Identifier': return [pattern.name];
    case 'ObjectPattern': return pattern.properties.flatMap((p) => patternNames(p.type === 'RestElement' ? p : p.value));
    case 'ArrayPattern': return pattern.elements.flatMap(patternNames);
    case 'AssignmentPattern': return patternNames(pattern.left);
    case 'RestElement': return patternNames(pattern.argument);
    default: return [];
  }
}

function metaProperties(node, found) {
  if (node.type === 'MetaProperty' && node.meta.name === 'import') return found(node);
  for (const value of Object.values(node)) {
    for (const child of Array.isArray(value) ? value : [value]) {
      if (typeof child?.type === 'string') metaProperties(child, found);
    }
  }
  return undefined;
}

// apply returns source from start to end with the edits that lie there. Where one contains another, as a blanked function its
// import.meta, the outer one holds.
function apply(source, edits, start, end) {
  let text = '';
  let at = start;
  for (const edit of edits) {
    if (edit.at < at || edit.end > end) continue;
    text += source.slice(at, edit.at) + edit.text;
    at = edit.end;
  }
  return text + source.slice(at, end);
}

// unedit returns a function that computes columns back. Lines count from 1, as do columns.
function unedit(source, edits) {
  let byLine; // made when an error asks for it
  return (line, column) => {
    if (byLine === undefined) {
      byLine = new Map();
      const starts = [0];
      for (let i = source.indexOf('\n'); i >= 0; i = source.indexOf('\n', i + 1)) starts.push(i + 1);
      let number = 0;
      for (const edit of edits.filter((e) => e.text.length !== e.end - e.at)) {
        while (number + 1 < starts.length && starts[number + 1] <= edit.at) number++;
        byLine.set(number + 1, [...byLine.get(number + 1) ?? [], { column: edit.at - starts[number] + 1, longer: edit.text.length - (edit.end - edit.at) }]);
      }
    }
    let shift = 0;
    for (const edit of byLine.get(line) ?? []) {
      if (column < edit.column + shift) break;
      if (column < edit.column + shift + edit.longer) return edit.column; // in what was put in
      shift += edit.longer;
    }
    return column - shift;
  };
}

// importCode returns the code in front of a cell: ES modules are loaded before anything runs.
function importCode(imports) {
  return imports.map(({ bindings }, i) => `__module = await __import(${i});` +
    bindings.map(([local, imported]) => `${local} = __module${imported === undefined ? '' : `[${JSON.stringify(imported)}]`};`).join('')).join('');
}

// wrap returns the source of a function that runs a rewritten cell. Its first line is in front of the cell's own.
function wrap(cell) {
  const strict = cell.strict ? '"use strict";' : '';
  return `(async (__import) => {${strict}${cell.imports.length > 0 ? 'let __module;' : ''}${importCode(cell.imports)}\n${cell.body}\n})`;
}

module.exports = { rewrite, wrap };
