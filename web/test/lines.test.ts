import assert from "node:assert/strict";
import { test } from "node:test";
import { Lines, longestLine, spansOf, type Stream } from "../src/lines.ts";
import { findText } from "../src/logview.ts";

const cases: [name: string, pieces: [Stream, string][], want: string[]][] = [
  ["lines in pieces", [["stdout", "a"], ["stdout", "b\nc"], ["stdout", "\n"]], ["stdout ab", "stdout c"]],
  ["an empty line", [["stdout", "a\n\nb"]], ["stdout a", "stdout ", "stdout b"]],
  ["CRLF", [["stdout", "a\r\nb\r\r\n"]], ["stdout a", "stdout b"]],
  ["CRLF in two pieces", [["stdout", "a\r"], ["stdout", "\nb"]], ["stdout a", "stdout b"]],
  ["a progress bar", [["stderr", "10%\r20%"], ["stderr", "\r30%\n"]], ["stderr 30%"]],
  ["streams do not break each other's lines", [["stdout", "a"], ["stderr", "x\n"], ["stdout", "b\n"]], ["stdout ab", "stderr x"]],
];

for (const [name, pieces, want] of cases) {
  test(name, () => {
    const lines = new Lines();
    for (const [stream, text] of pieces) lines.add(stream, text);
    assert.deepEqual(lines.all.map((l) => `${l.stream} ${l.text}`), want);
  });
}

test("an escape sequence in two pieces", () => {
  const lines = new Lines();
  lines.add("stdout", "\x1b[3");
  lines.add("stdout", "1mred\nstill");
  assert.deepEqual(spansOf(lines.all[0]!), [{ text: "red", style: { fg: 1 } }]);
  assert.deepEqual(spansOf(lines.all[1]!), [{ text: "still", style: { fg: 1 } }]);
});

test("add tells the first line that changed", () => {
  const lines = new Lines();
  assert.equal(lines.add("stdout", "a"), 0);
  assert.equal(lines.add("stderr", "x\ny\n"), 1);
  assert.equal(lines.add("stdout", "b\n"), 0);
  assert.equal(lines.add("stdout", "c"), 3);
});

test("a line without end is cut", () => {
  const lines = new Lines();
  for (let i = 0; i < 5; i++) lines.add("stdout", "x".repeat(longestLine / 2));
  assert.equal(lines.all[0]!.text.length, longestLine);
});

test("what is copied has no colours", () => {
  const lines = new Lines();
  lines.add("stdout", "\x1b[1ma\x1b[0m\n");
  lines.add("stderr", "b\n");
  assert.equal(lines.text(), "a\nb");
  assert.equal(lines.text("stderr"), "b");
});

test("a note ends the lines that are open", () => {
  const lines = new Lines();
  lines.add("stdout", "cut");
  lines.note("left out");
  lines.add("stdout", "off\n");
  assert.deepEqual(lines.all.map((l) => [l.stream, l.text]), [["stdout", "cut"], ["note", "left out"], ["stdout", "off"]]);
});

test("printed text is found in order, standard error aside", () => {
  const lines = new Lines();
  lines.add("stdout", "   a\n0  1\n");
  lines.add("stdout", "   a\n");
  lines.add("stderr", "warning\n");
  lines.add("stdout", "0  1\nend\n");
  assert.deepEqual(findText(lines.all, "   a\n0  1", 0), [0, 1]);
  assert.deepEqual(findText(lines.all, "   a\n0  1\n", 2), [2, 4]);
  assert.equal(findText(lines.all, "   a\n0  1", 3), undefined);
  assert.equal(findText(lines.all, "a\n0  1", 0), undefined);
});
