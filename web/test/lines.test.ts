import assert from "node:assert/strict";
import { test } from "node:test";
import { Lines, longestLine, spansOf, type Stream } from "../src/lines.ts";

const cases: [name: string, pieces: [Stream, string][], want: string[]][] = [
  ["lines in pieces", [["stdout", "a"], ["stdout", "b\nc"], ["stdout", "\n"]], ["stdout ab", "stdout c"]],
  ["an empty line", [["stdout", "a\n\nb"]], ["stdout a", "stdout ", "stdout b"]],
  ["CRLF", [["stdout", "a\r\nb\r\r\n"]], ["stdout a", "stdout b"]],
  ["CRLF in two pieces", [["stdout", "a\r"], ["stdout", "\nb"]], ["stdout a", "stdout b"]],
  ["a progress bar", [["stderr", "10%\r20%"], ["stderr", "\r30%\n"]], ["stderr 30%"]],
  ["a shorter text over a longer one", [["stdout", "100 %\r"], ["stdout", "5"], ["stdout", "0"], ["stdout", "\n"]], ["stdout 500 %"]],
  ["colours over a longer text", [["stdout", "100 %\r\x1b[1m5 %\n"]], ["stdout \x1b[1m5 %"]],
  ["a character of two units over a longer text", [["stdout", "100 %\r😀\n"]], ["stdout 😀"]],
  ["backspaces", [["stdout", "wait |"], ["stdout", "\b/\b"], ["stdout", "-"], ["stdout", "\b\b\b done\n\b\bx"]], ["stdout wai done", "stdout x"]],
  ["no backspaces in colours", [["stdout", "\x1b[31m|\x1b[0m\b/\n"]], ["stdout \x1b[31m|\x1b[0m/"]],
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

test("a text at the end of stdout is removed, standard error stays", () => {
  const lines = new Lines();
  lines.add("stdout", "before\n   a\n");
  lines.add("stderr", "warning\n");
  lines.add("stdout", "\x1b[1m0  1\x1b[m\n");
  assert.equal(lines.removeEnd("0  2\n"), false);
  assert.equal(lines.removeEnd("x\nbefore\n   a\n0  1\n"), false);
  assert.equal(lines.removeEnd("   a\n0  1\n"), true);
  assert.deepEqual(lines.all.map((l) => l.text), ["before", "warning"]);
});
