import assert from "node:assert/strict";
import { test } from "node:test";
import { cellStyles, readable } from "../src/cellstyle.ts";
import { parseColor, type Color } from "../src/color.ts";
import { tableOfHTML } from "../src/tables.ts";

const styled = `<style type="text/css">
#T_ab th { color: red; }
#T_ab_row0_col1, #T_ab_row1_col0 {
  background-color: yellow; color: #000
}
#T_ab_row0_col0 { width: 10em; background-color: red; background: linear-gradient(90deg, transparent 71.4%, #5fba7d 71.4%, rgba(1, 2, 3, .5) 100.0%); }
#T_ab_level0_col0 { font-weight: bold !important; text-align: center }
</style>
<table id="T_ab"><caption>Sales <b>by</b>
 region &amp; year</caption>
<thead><tr><th class="blank">&nbsp;</th><th id="T_ab_level0_col0">a</th></tr></thead>
<tbody><tr><td id="T_ab_row0_col0" class="data">1</td><td id="T_ab_row0_col1">2</td></tr></tbody></table>`;

test("a styled table of pandas", () => {
  const table = tableOfHTML(styled)!;
  const styles = [...table.head, ...table.body].map((row) => row.map((c) => c.style && Object.fromEntries(c.style)));
  assert.equal(table.caption, "Sales by region & year");
  assert.deepEqual(styles, [
    [undefined, { "font-weight": "bold", "text-align": "center" }],
    [{ "background-image": "linear-gradient(90deg, transparent 71.4%, #5fba7d 71.4%, rgba(1, 2, 3, .5) 100.0%)" }, { "background-color": "yellow", color: "#000" }],
  ]);
  assert.deepEqual(table.notes, []);
});

const declared = (body: string) => Object.fromEntries(cellStyles(`<style>#a { ${body} }</style>`).get("a") ?? []);

for (const [name, body, want] of [
  ["every property", "color: RED; background-color: hsl(120deg 50% 50% / .5); font-weight: 700; font-style: italic; text-align: right; text-decoration: underline dotted", { color: "RED", "background-color": "hsl(120deg 50% 50% / .5)", "font-weight": "700", "font-style": "italic", "text-align": "right", "text-decoration": "underline dotted" }],
  ["a background that is a colour", "background: burlywood", { "background-color": "burlywood" }],
  ["the last one wins", "color: red; color: blue; color: url(x)", { color: "blue" }],
  ["comments", "color: /* : green; */ red", { color: "red" }],
  ["other properties", "position: fixed; width: 9999px; display: none; content: 'x'; font-size: 99px; opacity: 0; --x: red; background-image: linear-gradient(red, blue); border-image: x", {}],
  ["addresses", "background: url(//x.test); background-color: url(//x.test); color: URL(x); background: linear-gradient(url(//x.test), red); background: linear-gradient(red, blue), url(x)", {}],
  ["functions", "color: var(--text); color: attr(x); color: expression(alert(1)); background: linear-gradient(var(--a), red); background: image-set('x' 1x); background: linear-gradient(image(red), red); color: color-mix(in srgb, red, blue); background: linear-gradient((red), env(x)); color: rgb(calc(1))", {}],
  ["characters", "color: r\\65 d; color: @x; background: linear-gradient(red\\, blue); color: 'red'", {}],
  ["gradients of other kinds", "background: radial-gradient(red, blue); background: repeating-linear-gradient(red, blue); background: element(#x); background: -webkit-linear-gradient(red, blue)", {}],
  ["a value that is too long", `background: linear-gradient(${"red,".repeat(200)}red)`, {}],
  ["nothing", "", {}],
] as const) {
  test(`rules for a cell: ${name}`, () => assert.deepEqual(declared(body), want));
}

test("rules for anything but a cell are left out", () => {
  const css = "* { color: red } #a td { color: red } td#b { color: red } #c:hover { color: red } @media print { #d { color: red } } @import url(x); #e { color: red } #f { color: red";
  assert.deepEqual([...cellStyles(`<style>${css}</style>`).keys()], []);
  assert.deepEqual([...cellStyles(`<STYLE scoped>#a { color: red }</STYLE ><p>#b { color: red }</p><style>#c,#d{color:red}`).keys()], ["a"]);
});

test("hostile rules are bounded and read in linear time", () => {
  const many = (part: string) => part.repeat(Math.ceil(500_000 / part.length));
  for (const css of [many("{"), many("}"), many("#a{"), many("/*"), many("#a,"), `${many("#a,")}#a{${many("color:red;")}}`, `#a{${many(";")}}`, `#a{color:${many(" ")}}`, `#a{background:linear-gradient(${many("(")}`, many("#a{color:red}"), many(" "), many("<style>")]) {
    const start = process.cpuUsage();
    cellStyles(`<style>${css}</style>`);
    cellStyles(many(`<style>${css.slice(0, 20)}`));
    const ms = process.cpuUsage(start).user / 1000;
    assert.ok(ms < 2000, `${css.slice(0, 20)}…: ${ms} ms`);
  }
  const ids = Array.from({ length: 50_000 }, (_, i) => `#c${i}`);
  assert.equal(cellStyles(`<style>${ids.join(",")} { color: red }</style>`).size, 40_000);
  assert.equal(cellStyles(`<style>${ids.map((id) => `${id}{color:red}`).join("")}</style>`).size, 40_000);
});

test("cells can be read in both themes", () => {
  const names: Record<string, string> = { yellow: "#ffff00", navy: "#000080", black: "#000000", white: "#ffffff", red: "#ff0000", none: "rgba(0, 0, 0, 0)", tint: "rgba(255, 0, 0, 0.1)" };
  const read = (value: string): Color | undefined => parseColor(names[value] ?? "");
  const shown = (style: Record<string, string>) => Object.fromEntries(readable(new Map(Object.entries(style)), read));
  assert.deepEqual(shown({ "background-color": "yellow" }), { "background-color": "#ffff00", color: "#16191d" });
  assert.deepEqual(shown({ "background-color": "navy" }), { "background-color": "#000080", color: "#ffffff" });
  assert.deepEqual(shown({ "background-color": "navy", color: "white" }), { "background-color": "#000080", color: "#ffffff" });
  assert.deepEqual(shown({ "background-color": "tint" }), { "background-color": "light-dark(#ffe6e6, #2c1518)", color: "light-dark(#16191d, #ffffff)" });
  assert.deepEqual(shown({ "background-color": "none", "font-weight": "bold" }), { "font-weight": "bold" });
  assert.deepEqual(shown({ color: "red" }), { color: "light-dark(#e60000, #ff1a1a)" }, "almost as it was");
  assert.deepEqual(shown({ color: "black" }), { color: "light-dark(#000000, #ffffff)" });
  assert.deepEqual(shown({ color: "white" }), { color: "light-dark(#16191d, #ffffff)" });
  assert.deepEqual(shown({ "background-color": "yellow", color: "white" }), { "background-color": "#ffff00", color: "#16191d" });
  assert.deepEqual(shown({ "background-color": "tint", color: "black" }), { "background-color": "light-dark(#ffe6e6, #2c1518)", color: "light-dark(#000000, #ffffff)" });
  assert.deepEqual(shown({ color: "nonsense", "background-color": "nonsense" }), {});
  assert.deepEqual(shown({ "background-image": "linear-gradient(red, blue)" }), { "background-image": "linear-gradient(var(--bar-veil), var(--bar-veil)), linear-gradient(red, blue)" });
});
