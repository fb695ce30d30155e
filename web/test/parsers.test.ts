import assert from "node:assert/strict";
import { test } from "node:test";
import { numericColumns, parseCSV, separatorOf } from "../src/csv.ts";
import { eventParser, type ServerEvent } from "../src/sse.ts";

for (const [name, text, want] of [
  ["rows", "a,b\n1,2\n", [["a", "b"], ["1", "2"]]],
  ["without a last line break", "a,b\r\n1,2", [["a", "b"], ["1", "2"]]],
  ["quotes", 'a,b\n"x, ""y""\nz",2\n', [["a", "b"], ['x, "y"\nz', "2"]]],
  ["empty fields", "a,,c\n,,\n", [["a", "", "c"], ["", "", ""]]],
  ["a field that ends the file", "a,b\n1,", [["a", "b"], ["1", ""]]],
  ["a quote that does not end", 'a,b\n"x', [["a", "b"], ["x"]]],
  ["a byte order mark", "\ufeffa;b\n1;2", [["a", "b"], ["1", "2"]]],
  ["blank lines", "a,b\n\n1,2\n\n", [["a", "b"], ["1", "2"]]],
  ["markup is text", "<b>,</script>", [["<b>", "</script>"]]],
  ["nothing", "", []],
] as [string, string, string[][]][]) {
  test(`CSV: ${name}`, () => assert.deepEqual(parseCSV(text).rows, want));
}

test("CSV: rows are bounded", () => {
  const { rows, truncated } = parseCSV("a\n".repeat(10), ",", 3);
  assert.equal(rows.length, 3);
  assert.equal(truncated, true);
  assert.equal(parseCSV("a\n".repeat(3), ",", 3).truncated, false);
});

test("CSV: the separator", () => {
  assert.equal(separatorOf("a;b;c\n1,5;2;3"), ";");
  assert.equal(separatorOf('"a;b;c;d",b\n'), ",");
  assert.equal(separatorOf("a\tb"), "\t");
});

test("CSV: columns of numbers", () => {
  assert.deepEqual(numericColumns([["1", "a", "1e5", ""], ["...", "2", "...", ""], ["-2.5", "2", "nan", ""]]), [true, false, true, false]);
});

const stream = 'event: message\r\ndata: {"a":1}\r\n\r\n: beat\n\ndata:x\ndata: y\n\nid: 1\n\ndata: rest';
const events: ServerEvent[] = [{ event: "message", data: '{"a":1}' }, { event: "message", data: "x\ny" }];

for (const size of [1, 2, 3, 7, 1000]) {
  test(`events in pieces of ${size}`, () => {
    const parse = eventParser();
    const got: ServerEvent[] = [];
    for (let i = 0; i < stream.length; i += size) got.push(...parse(stream.slice(i, i + size)));
    assert.deepEqual(got, events);
  });
}
