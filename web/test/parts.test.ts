import assert from "node:assert/strict";
import { test } from "node:test";
import { spansOf, Lines } from "../src/lines.ts";
import { partsOf, type Part, type Piece } from "../src/parts.ts";

const piece = (type: string, rest: Partial<Piece> = {}): Piece => ({ type, text: "", omitted: 0, index: undefined, file: "", url: "", ...rest });
const out = (text: string) => piece("stdout", { text });
const err = (text: string) => piece("stderr", { text });
const table = "   a\n0  1\n";
const plain = { display: table, image: "" } as Record<string, string>;
const show = (p: Piece) => (p.index === undefined ? undefined : { element: `${p.type} ${p.index}`, plain: plain[p.type]! });
const read = (parts: Part<string>[]) => parts.map((part) => (part instanceof Lines ? part.all.map((l) => `${l.stream}: ${l.text}`) : part.element));

test("plots and tables where they were made, tables in place of their text", () => {
  const pieces = [out("one\n"), piece("image", { index: 0 }), out(`two\n${table}`), piece("display", { index: 0 }), err("three"), piece("image", { index: 1 }), piece("image", { index: 2 })];
  assert.deepEqual(read(partsOf(pieces, show)), [["stdout: one"], "image 0", ["stdout: two"], "display 0", ["stderr: three"], "image 1", "image 2"]);
  assert.deepEqual(read(partsOf([out(table), piece("display", { index: 0 })], show)), ["display 0"]);
});

test("a table hides no other text", () => {
  const text = (printed: string) => read(partsOf([out(printed), piece("display", { index: 0 })], show))[0];
  assert.deepEqual(text(`x${table}`), ["stdout: x   a", "stdout: 0  1"]);
  assert.deepEqual(text("0  1\n"), ["stdout: 0  1"]);
});

test("text goes on after what cannot be shown, and ends before what is", () => {
  assert.deepEqual(read(partsOf([out("a"), piece("image"), out("b\n")], show)), [["stdout: ab"]]);
  assert.deepEqual(read(partsOf([out("50 %\r"), piece("image", { index: 0 }), out("60 %\n")], show)), [["stdout: 50 %"], "image 0", ["stdout: 60 %"]]);
});

test("colours go on", () => {
  const [, , after] = partsOf([out("\x1b[31mred"), piece("image", { index: 0 }), out("still\n")], show);
  assert.deepEqual(spansOf((after as Lines).all[0]!), [{ text: "still", style: { fg: 1 } }]);
});

test("what is left out is told once, in its place", () => {
  const gap = (omitted: number, type = "stdout") => piece(type, { omitted });
  assert.deepEqual(read(partsOf([out("a\n"), gap(1000), gap(7, "stderr"), err("b\n"), gap(1), piece("display", { index: 0 }), out("c\n")], show)), [
    ["stdout: a", "note: … 1,007 bytes of output are left out here …", "stderr: b", "note: … 1 bytes of output are left out here …"],
    "display 0",
    ["stdout: c"],
  ]);
});
