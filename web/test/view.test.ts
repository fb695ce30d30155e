import assert from "node:assert/strict";
import { test } from "node:test";
import { age, bytes, duration, kindName, kindOf } from "../src/format.ts";
import { tallest, windowOf } from "../src/virtual.ts";

test("the window of a list", () => {
  assert.deepEqual(windowOf(1000, 20, 0, 400, 5), { first: 0, last: 25, top: 0, height: 20_000 });
  assert.deepEqual(windowOf(1000, 20, 1000, 400, 5), { first: 45, last: 75, top: 900, height: 20_000 });
  assert.equal(windowOf(1000, 20, 1e9, 400).last, 1000);
  assert.deepEqual(windowOf(0, 20, 0, 400), { first: 0, last: 0, top: 0, height: 0 });
  assert.equal(windowOf(10, 20, -50, 400).first, 0);
});

test("a list taller than browsers lay out", () => {
  const rows = 2_000_000;
  const top = windowOf(rows, 20, 0, 400);
  assert.equal(top.height, tallest);
  assert.equal(top.first, 0);
  const bottom = windowOf(rows, 20, tallest, 400, 0);
  assert.equal(bottom.last, rows);
  assert.ok(bottom.top + (bottom.last - bottom.first) * 20 <= tallest + 1, "the last row is within reach");
  const middle = windowOf(rows, 20, tallest / 2, 400, 0);
  assert.ok(Math.abs(middle.first - rows / 2) < 100);
  assert.ok(Math.abs(middle.top - tallest / 2) <= 220, "what is shown is where one looks");
});

for (const [got, want] of [
  [bytes(0), "0 B"],
  [bytes(999), "999 B"],
  [bytes(1000), "1.0 KB"],
  [bytes(1023 * 1024), "1.0 MB"],
  [bytes(63 * 1024 * 1024), "63 MB"],
  [bytes(5 * 1024 ** 4), "5.0 TB"],
  [duration(12.4), "12 ms"],
  [duration(999), "999 ms"],
  [duration(1234), "1.23 s"],
  [duration(59_940), "59.9 s"],
  [duration(59_960), "1 min 00 s"],
  [duration(125_000), "2 min 05 s"],
  [age(1000, 1500), "just now"],
  [age(0, 42_000), "42 s ago"],
  [age(0, 3_599_000), "59 min ago"],
  [age(0, 90_000_000), "1 d ago"],
  [age(0, 2_000_000_000), "1970-01-01"],
  [kindOf("a/b.CSV", "text/plain"), "table"],
  [kindOf("x.svg", "image/svg+xml"), "image"],
  [kindOf("x.html", "text/html"), "text"],
  [kindOf("x.pdf", "application/pdf"), "pdf"],
  [kindOf("x.bin", "application/octet-stream"), "other"],
  [kindName("a.b/x.csv"), "CSV"],
  [kindName("a.b/Makefile"), "file"],
] as const) {
  test(`${want}`, () => assert.equal(got, want));
}
