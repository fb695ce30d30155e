// Makes HTML tables of values, for people who see a cell's output. Values are the user's, and may be
// hostile: it calls no getter and no Proxy.
'use strict';

// Cells may redeclare globals: keep the original ones.
const { Array, Math, Object, Set, String } = globalThis;
const { inspect, types } = require('node:util');

const MAX_ROWS = 1000;
const MAX_COLUMNS = 100;
const MAX_TEXT = 1000; // characters of a cell

const escape = (text) => text.replace(/[&<>"]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]);

// isPlain returns whether a value is an ordinary object or array.
const isPlain = (value) => typeof value === 'object' && value !== null && !types.isProxy(value) &&
  [Object.prototype, Array.prototype, null].includes(Object.getPrototypeOf(value));

function textOf(property) {
  if (property === undefined || ('value' in property && property.value === undefined)) return '';
  let text = '[Getter]';
  if ('value' in property) text = typeof property.value === 'string' ? property.value : inspect(property.value, { breakLength: Infinity, compact: true, depth: 1 });
  return text.length > MAX_TEXT ? text.slice(0, MAX_TEXT) + '…' : text;
}

// rowsOf returns the names and the properties of the first rows.
function rowsOf(value) {
  const names = Array.isArray(value) ? Array.from({ length: Math.min(value.length, MAX_ROWS) }, (_, i) => String(i)) : Object.keys(value).slice(0, MAX_ROWS);
  return names.map((name) => [name, Object.getOwnPropertyDescriptor(value, name)]);
}

// tableOf returns the HTML of an array of objects or of arrays, with the given columns or all. Of other
// values it returns undefined.
function tableOf(value, columns) {
  if (!isPlain(value) || !Array.isArray(value)) return undefined;
  const rows = rowsOf(value);
  if (!rows.every(([, property]) => isPlain(property?.value))) return undefined;
  return render(value, rows, columns);
}

// consoleTableOf returns the HTML of what console.table prints, which has a column for values that are
// not objects.
function consoleTableOf(value, columns) {
  return isPlain(value) ? render(value, rowsOf(value), columns) : undefined;
}

function render(value, rows, columns) {
  const names = new Set(Array.isArray(columns) ? columns.map(String) : []);
  const isRow = (property) => isPlain(property?.value);
  if (columns === undefined) for (const [, property] of rows) if (isRow(property)) for (const name of Object.keys(property.value)) names.add(name);
  const header = [...names].slice(0, MAX_COLUMNS);
  const hasValues = columns === undefined && rows.some(([, property]) => !isRow(property));
  if (rows.length === 0 || header.length + hasValues === 0) return undefined;
  const cells = (property) => [
    ...header.map((name) => isRow(property) ? textOf(Object.getOwnPropertyDescriptor(property.value, name)) : ''),
    ...(hasValues ? [isRow(property) ? '' : textOf(property)] : []),
  ];
  const tr = (head, texts, tag) => `<tr><th>${escape(head)}</th>${texts.map((text) => `<${tag}>${escape(text)}</${tag}>`).join('')}</tr>`;
  const total = Array.isArray(value) ? value.length : Object.keys(value).length;
  const note = total > rows.length || names.size > header.length ? `<p>${total} rows × ${names.size + hasValues} columns</p>` : '';
  return `<table><thead>${tr('', hasValues ? [...header, 'Values'] : header, 'th')}</thead><tbody>${rows.map(([name, property]) => tr(name, cells(property), 'td')).join('')}</tbody></table>${note}`;
}

module.exports = { consoleTableOf, tableOf };
