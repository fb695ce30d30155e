// Rewrites the source of a cell so that its declarations persist in later cells, which may declare them
// again in any way.
//
// V8's REPL mode cannot redeclare a const as a let, a function or an import, and has no static imports.
// So top-level declarations become assignments to globals, function declarations a separate script
// (they are hoisted and global), static imports awaited calls before the first line, and the last
// expression a return. Lines never move, and columns can be mapped back. The parser is the REPL's.
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
    // Older parsers lack "with { type: 'json' }", and none has "assert". File names tell the type anyway.
    const without = source.replace(/(\bfrom\s*(?:'[^'\n]*'|"[^"\n]*")\s*)((?:with|assert)\s*\{[^{}]*\})/g, (_, before, attributes) => before + blank(attributes));
    if (without === source) throw error;
    return { source: without, ast: acorn.parse(without, options) };
  }
}

const blank = (text) => text.replace(/[^\r\n\u2028\u2029]/g, ' ');

// rewrite returns the two scripts of a cell, and what is needed to run them. For compiled code, original
// is the user's source: names that are not in it are the compiler's.
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
    vars: new Set(), // names that are undefined, not unknown, before their assignment
    fresh: new Set(), // vars to reset: compiled enums and namespaces extend an old value
    strict: body[0]?.directive === 'use strict',
    unedit: undefined, // (line, column) in the rewritten source → column in the user's
  };
  const edits = []; // {at, end, text}; only edits within one line change its length
  const replace = (at, end, text) => edits.push({ at, end, text });
  const insert = (at, text) => replace(at, at, text);
  const expressionEnd = (node) => source[node.end - 1] === ';' ? node.end - 1 : node.end;
  const functions = [];

  // The compiler's temporaries are local to a cell. Its helpers are the same in all cells.
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

  // nestedVars finds the vars in nested statements, which also belong to the cell.
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

// apply returns source from start to end with its edits. If one contains another, such as a removed
// function its import.meta, the outer one applies.
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

// unedit returns a function that maps columns back. Lines and columns count from 1.
function unedit(source, edits) {
  let byLine; // made on first use
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
      if (column < edit.column + shift + edit.longer) return edit.column; // in inserted text
      shift += edit.longer;
    }
    return column - shift;
  };
}

// importCode returns the code before a cell, which loads ES modules first.
function importCode(imports) {
  return imports.map(({ bindings }, i) => `__module = await __import(${i});` +
    bindings.map(([local, imported]) => `${local} = __module${imported === undefined ? '' : `[${JSON.stringify(imported)}]`};`).join('')).join('');
}

// wrap returns the source of a function that runs a rewritten cell. It adds one line before the cell.
function wrap(cell) {
  const strict = cell.strict ? '"use strict";' : '';
  return `(async (__import) => {${strict}${cell.imports.length > 0 ? 'let __module;' : ''}${importCode(cell.imports)}\n${cell.body}\n})`;
}

module.exports = { rewrite, wrap };
