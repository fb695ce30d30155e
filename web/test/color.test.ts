import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { paintOf } from "../src/ansi.ts";
import { contrast, cssOf, enough, parseColor, surfaces, texts, withContrast } from "../src/color.ts";

const themes = ["light", "dark"] as const;
/** Returns the value of a colour in a theme. */
const inTheme = (css: string, theme: "light" | "dark") => parseColor(/^light-dark\((.+), (.+)\)$/.exec(css)?.[theme === "light" ? 1 : 2] ?? css)!;

test("the colours of the themes are those of the style sheet", () => {
  const css = readFileSync("src/style/theme.css", "utf8");
  const values = (name: string) => [...css.matchAll(new RegExp(`--${name}: (#[0-9a-f]{6});`, "g"))].map((m) => m[1]);
  assert.deepEqual(values("surface"), [surfaces.light, surfaces.dark]);
  assert.deepEqual(values("text"), [texts.light, texts.dark]);
});

test("colours as browsers write them", () => {
  assert.deepEqual(parseColor("#0a10ff"), [10, 16, 255, 1]);
  assert.deepEqual(parseColor("rgba(1, 2, 3, 0.5)"), [1, 2, 3, 0.5]);
  assert.equal(parseColor("navy"), undefined);
  assert.equal(Math.round(contrast(parseColor("#000000")!, parseColor("#ffffff")!)), 21);
  assert.equal(cssOf({ light: "#000000", dark: "#000000" }), "#000000");
});

test("a colour moves no further than it must", () => {
  const [white, blue] = [parseColor("#ffffff")!, parseColor("#2472c8")!];
  assert.equal(withContrast(blue, white), blue);
  const grey = parseColor("#777777")!;
  assert.ok(contrast(withContrast(grey, grey), grey) >= enough);
});

test("text on a background of a program can be read", () => {
  const colors = [undefined, ...Array(16).keys(), "#808080", "#ffff00", "#000080", "#767676"];
  for (const fg of colors) {
    for (const bg of colors.slice(1)) {
      for (const inverse of [false, true]) {
        const style = inverse ? { inverse, ...(fg === undefined ? {} : { bg: fg }), fg: bg! } : { ...(fg === undefined ? {} : { fg }), bg: bg! };
        const { color, background, classes } = paintOf(style);
        assert.deepEqual(classes, []);
        for (const theme of themes) assert.ok(contrast(inTheme(color, theme), inTheme(background, theme)) >= enough, `${fg} on ${bg}: ${color} on ${background}`);
      }
    }
  }
});

test("a background keeps its hue, and grey on black is not turned round", () => {
  const { color, background } = paintOf({ bg: 2, fg: 15 });
  const [r, g, b] = parseColor(background)!;
  assert.ok(color === "#ffffff" && g > 2 * r && g > b, `${color} on ${background}`);
  assert.equal(paintOf({ bg: 0, fg: 8 }).background, "#000000");
});

test("white on blue is white on blue, in both themes", () => {
  assert.deepEqual(paintOf({ bg: 4, fg: 15 }), { classes: [], color: "#ffffff", background: "#2472c8" });
  assert.deepEqual(paintOf({ bg: 3 }), { classes: [], color: "#16191d", background: "#e5e510" });
});

test("text without a background of its own", () => {
  assert.deepEqual(paintOf({ fg: 4, bold: true }), { classes: ["fg-4", "ansi-bold"], color: "", background: "" });
  assert.deepEqual(paintOf({ inverse: true }).classes, ["bg-text", "fg-surface"]);
  for (const theme of themes) {
    for (const fg of ["#ffff00", "#000080", "#ffffff"]) {
      assert.ok(contrast(inTheme(paintOf({ fg }).color, theme), parseColor(surfaces[theme])!) >= enough, fg);
      assert.ok(contrast(inTheme(paintOf({ bg: fg, inverse: true }).color, theme), parseColor(texts[theme])!) >= enough, fg);
    }
  }
});
