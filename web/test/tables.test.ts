import assert from "node:assert/strict";
import { test } from "node:test";
import { beginningOf, columnsOf, tableOfHTML } from "../src/tables.ts";

const frame = `<div>
<style scoped>.dataframe { color: red }</style>
<table border="1" class="dataframe">
  <thead>
    <tr style="text-align: right;"><th></th><th>name</th><th>n &lt; 5</th></tr>
  </thead>
  <tbody>
    <tr><th>0</th><td>a&amp;b</td><td>1.5</td></tr>
    <tr><th>1</th><td><b onclick="x()">bold</b><br>two</td><td>-2</td></tr>
  </tbody>
</table>
<p>2 rows × 2 columns</p>
</div>`;

test("a data frame", () => {
  const table = tableOfHTML(frame)!;
  assert.deepEqual(table.head.map((row) => row.map((c) => c.text)), [["", "name", "n < 5"]]);
  assert.deepEqual(table.body.map((row) => row.map((c) => c.text)), [["0", "a&b", "1.5"], ["1", "bold\ntwo", "-2"]]);
  assert.deepEqual(table.body[0]!.map((c) => c.head), [true, false, false]);
  assert.deepEqual(table.notes, ["2 rows × 2 columns"]);
});

test("several levels of an index", () => {
  const table = tableOfHTML('<table><tr><th rowspan="2" valign="top">a</th><th>x</th><td>1</td></tr><tr><th>y</th><td>2</td></tr><tr><th colspan="2">b</th><td>3</td></tr></table>')!;
  assert.deepEqual(columnsOf(table.body), [[0, 1, 2], [1, 2], [0, 2]]);
});

for (const [name, html] of [
  ["two tables", "<table><tr><td>1</td></tr></table><table><tr><td>2</td></tr></table>"],
  ["a table in a table", "<table><tr><td><table><tr><td>1</td></tr></table></td></tr></table>"],
  ["more than a table", "<h1>Report</h1><table><tr><td>1</td></tr></table>"],
  ["no table", "<p>text</p>"],
  ["nothing", ""],
] as const) {
  test(`no table of the page's own: ${name}`, () => assert.equal(tableOfHTML(html), undefined));
}

test("what a hostile table says of its size is bounded", () => {
  const table = tableOfHTML('<table><tr><td colspan="99999999" rowspan="0">&#x110000;&#0;&unknown;</td></tr></table>')!;
  assert.deepEqual(table.body[0], [{ text: "\ufffd\ufffd&unknown;", head: false, columns: 1, rows: 1 }]);
  const start = Date.now();
  tableOfHTML(`<table>${"<tr><td colspan=9999>".repeat(50_000)}`);
  assert.ok(Date.now() - start < 5000);
});

test("spans do not make a table larger than a browser can lay out", () => {
  const row = "<tr>" + '<td colspan="200" rowspan="200"></td>'.repeat(200) + "</tr>" + "<tr><td>1</td></tr>".repeat(199);
  const { body, cut } = beginningOf(tableOfHTML("<table>" + row.repeat(20) + "<tr></tr>".repeat(50_000) + "</table>")!);
  assert.ok(cut);
  assert.ok(body.length <= 40_000);
  assert.ok(Math.max(...columnsOf(body).flat()) < 5_000);
});
