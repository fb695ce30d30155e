import assert from "node:assert/strict";
import { test } from "node:test";
import { parseMarkdown, type Node } from "../src/markdown.ts";

/** Writes nodes as text, for tests only. */
const written = (nodes: Node[]): string => nodes.map((n) => (typeof n === "string" ? n : `<${n.tag}>${written(n.children)}</${n.tag}>`)).join("");

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
  ["links and images show their text", '[site](https://x.test "t") ![plot](a.png) [not a link]', "<p>site plot [not a link]</p>"],
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
