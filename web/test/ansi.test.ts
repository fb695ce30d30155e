import assert from "node:assert/strict";
import { test } from "node:test";
import { parse, splitUnfinished, strip } from "../src/ansi.ts";

const cases: [name: string, line: string, want: [string, object][]][] = [
  ["plain", "a <b>", [["a <b>", {}]]],
  ["empty", "", []],
  ["a colour and its end", "\x1b[31mred\x1b[0m.", [["red", { fg: 1 }], [".", {}]]],
  ["no parameter is a reset", "\x1b[1;32mx\x1b[my", [["x", { bold: true, fg: 2 }], ["y", {}]]],
  ["bright", "\x1b[91;102mx", [["x", { fg: 9, bg: 10 }]]],
  ["256 colours", "\x1b[38;5;9ma\x1b[38;5;196mb\x1b[48;5;244mc", [["a", { fg: 9 }], ["b", { fg: "#ff0000" }], ["c", { fg: "#ff0000", bg: "#808080" }]]],
  ["true colour", "\x1b[38;2;1;2;255mx", [["x", { fg: "#0102ff" }]]],
  ["colours out of range", "\x1b[38;2;1;2;256mx\x1b[38;5;999my", [["xy", {}]]],
  ["attributes are taken back", "\x1b[1;3;4;7;9ma\x1b[22;23;24;27;29mb", [["a", { bold: true, italic: true, underline: true, inverse: true, strike: true }], ["b", {}]]],
  ["cursor movements are dropped", "a\x1b[2K\x1b[10;5Hb\x1b[?25lc", [["abc", {}]]],
  ["titles and links are dropped", "a\x1b]0;title\x07b\x1b]8;;http://x\x1b\\c", [["abc", {}]]],
  ["control characters are dropped", "a\x00\x07\x08b\tc", [["ab\tc", {}]]],
];

for (const [name, line, want] of cases) {
  test(name, () => assert.deepEqual(parse(line).spans.map(({ text, style }) => [text, style]), want));
}

test("a style lives on in the next line", () => {
  const { end } = parse("\x1b[34mblue");
  assert.deepEqual(parse("still", end).spans, [{ text: "still", style: { fg: 4 } }]);
});

test("a string without end hides nothing", () => {
  assert.deepEqual(splitUnfinished("a\x1b]0;t\nb\n"), ["a\x1b]0;t\nb\n", ""]);
  assert.equal(strip("a\x1b]0;t\nb\x1bPt\nc"), "a\nb\nc");
});

test("strip", () => assert.equal(strip("\x1b[1mbold\x1b[0m\x1b]0;t\x07 text"), "bold text"));

for (const [text, want] of [
  ["abc", ["abc", ""]],
  ["abc\x1b", ["abc", "\x1b"]],
  ["abc\x1b[3", ["abc", "\x1b[3"]],
  ["abc\x1b[31m", ["abc\x1b[31m", ""]],
  ["a\x1b]0;ti", ["a", "\x1b]0;ti"]],
] as const) {
  test(`unfinished in ${JSON.stringify(text)}`, () => assert.deepEqual(splitUnfinished(text), want));
}
