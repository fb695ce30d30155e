import assert from "node:assert/strict";
import { test } from "node:test";
import { parseMarkdown, type Node } from "../src/markdown.ts";

/** Writes nodes as text, for tests only. */
const written = (nodes: Node[]): string => nodes.map((n) => (typeof n === "string" ? n : `<${n.tag}${n.href === undefined ? "" : ` ${n.href}`}>${written(n.children)}</${n.tag}>`)).join("");

for (const [name, text, want] of [
  ["headings", "# A `b`\n## C #\n#### D\n#no", "<h2>A <code>b</code></h2><h3>C</h3><h4>D</h4><p>#no</p>"],
  ["emphasis", "**a *b*** __c__ _d_ ~~e~~ snake_case_name 2 * 3 * 4", "<p><strong>a *b</strong>* <strong>c</strong> <em>d</em> <s>e</s> snake_case_name 2 * 3 * 4</p>"],
  ["paragraphs and breaks", "a\nb  \nc\n\nd", "<p>a\nb<br></br>c</p><p>d</p>"],
  ["lists", "- a\n  more\n  - b\n- c\n\n1. x\n2) y", "<ul><li>a\nmore<ul><li>b</li></ul></li><li>c</li></ul><ol><li>x</li><li>y</li></ol>"],
  ["code", "```python\n<b> *x*\n\n# y\n```\nafter ``", "<pre><b> *x*\n\n# y</pre><p>after ``</p>"],
  ["code without an end", "~~~\nx", "<pre>x</pre>"],
  ["a quote", "> a\n> - b\nc", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote><p>c</p>"],
  ["a table", "| a | b |\n|---|:-:|\n| 1 | x\\|y |\n\nend", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>x|y</td></tr></tbody></table><p>end</p>"],
  ["a line", "a\n\n---\nb", "<p>a</p><hr></hr><p>b</p>"],
  ["headings with closing #s", "# a ##  \n## b#\n### #\n#\tc # d ####", "<h2>a</h2><h3>b</h3><h4></h4><h2>c # d</h2>"],
  ["a heading of #s alone", "# ###", "<h2></h2>"],
  ["tables with and without lines at the sides", "a|b\n-|-\n1|2\n\n  |a|\n  | :--: |\n|1|", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table><table><thead><tr><th>a</th></tr></thead><tbody><tr><td>1</td></tr></tbody></table>"],
  ["what is not a table", "a|b\n--x|--\n\na|b\n||", "<p>a|b\n--x|--</p><p>a|b\n||</p>"],
  ["line breaks", "a  \nb\\\nc    \nd e", "<p>a<br></br>b<br></br>c  <br></br>d e</p>"],
  ["code in several backticks", "``a`` ```b`` `c`", "<p><code>a</code> ```b`` <code>c</code></p>"],
  ["web links", '[site](https://x.test "t") [**b**](HTTP://X.test/a_b?c=d#e) <https://y.test/p>', "<p><a https://x.test/>site</a> <a http://x.test/a_b?c=d#e><strong>b</strong></a> <a https://y.test/p>https://y.test/p</a></p>"],
  ["a link with parentheses", "([x](https://x.test/A_(b)))", "<p>(<a https://x.test/A_(b)>x</a>)</p>"],
  ["other links and images show their text", "[a](javascript:alert) [b](//x.test) [c](data:text/html,x) [d](/e) [f](#g) [h](mailto:a@b.test) [i](https:x.test) ![plot](https://x.test/a.png) [not a link]", "<p>a b c d f h i plot [not a link]</p>"],
  ["a link that hides its host", "[a](https://bank.test@x.test/) <https://bank.test:b@x.test/> [](https://x.test)", "<p>a https://bank.test:b@x.test/ </p>"],
  ["a host in other letters shows what it is", "[a](https://b\u0430nk.test)", "<p><a https://xn--bnk-6cd.test/>a</a></p>"],
  ["no link within a link", "[a <https://y.test>](https://x.test)", "<p><a https://x.test/>a https://y.test</a></p>"],
  ["what is not an address", "<javascript:alert(1)> <https://> <https://[> [a](https://[)", "<p><javascript:alert(1)> <https://> https://[ a</p>"],
  ["HTML is text", "<script>alert(1)</script>", "<p><script>alert(1)</script></p>"],
  ["escapes", "\\*a\\* 5\\$", "<p>*a* 5$</p>"],
  ["formulas", "$x_1 + x_2$", "<p>$x_1 + x_2$</p>"],
] as const) {
  test(name, () => assert.equal(written(parseMarkdown(text)), want));
}

test("hostile text comes to an end", () => {
  for (const part of ["*", "**a", "_a", "`", "[", "> ", "- ", "  - a\n", "![", "|\n-|\n", "# ", "\\"]) {
    assert.ok(parseMarkdown(part.repeat(20_000)).length > 0, part);
    assert.ok(parseMarkdown(`${part.repeat(2_000)}\n`.repeat(10)).length > 0, part);
  }
});

// Quadratic time is seconds or more for 60,000 characters, linear time milliseconds. CPU time does
// not depend on how busy the machine is.
for (const [name, text, want] of [
  ["a heading with blanks inside", `#${" ".repeat(30_000)}a${" ".repeat(30_000)}\u2028b`, "h2"],
  ["a heading with #s inside", `# ${"#".repeat(60_000)}x`, "h2"],
  ["a heading of #s and blanks", `# ${"# ".repeat(30_000)}x`, "h2"],
  ["a line below a table's head", `a|\n${" ".repeat(60_000)}x`, "p"],
  ["a ruler that ends in a letter", `a|\n${"-".repeat(60_000)}x`, "p"],
  ["a ruler of many columns", `a|\n${"-|".repeat(30_000)}x`, "p"],
  ["blanks inside a line", `a${" ".repeat(60_000)}b`, "p"],
  ["backticks", `a${"`".repeat(60_000)}b`, "p"],
  ["fences", "~~~\n".repeat(15_000), "pre"],
  ["links without an end", "[a](https://x.test/".repeat(3_000), "p"],
  ["links with parentheses without an end", `[a](${"(b)".repeat(20_000)}`, "p"],
  ["links with blanks", `[a](b${" ".repeat(60_000)}`, "p"],
  ["addresses without an end", "<https://x".repeat(6_000), "p"],
  ["a rule with blanks", `-${" ".repeat(30_000)}--${" ".repeat(30_000)}x`, "ul"],
] as const) {
  test(`hostile text is read in linear time: ${name}`, () => {
    const start = process.cpuUsage();
    const [first] = parseMarkdown(text);
    const ms = process.cpuUsage(start).user / 1000;
    assert.equal(typeof first === "string" ? "" : first?.tag, want);
    assert.ok(ms < 1000, `${ms} ms`);
  });
}
