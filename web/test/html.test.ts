import assert from "node:assert/strict";
import { test } from "node:test";
import { cleanHTML, estimatedHeight } from "../src/html.ts";

const cases: [name: string, html: string, want: string][] = [
  ["a table", '<table border="1"><tr><th colspan=2>a</th></tr></table>', '<table><tr><th colspan="2">a</th></tr></table>'],
  ["script", "a<script>alert(1)</script>b", "ab"],
  ["script in capitals, with blanks", "a<SCRIPT >x</script >b", "ab"],
  ["script that does not end", "a<script>alert(1)", "a"],
  ["script whose text looks like markup", '<script>"<b>"</script><b>x</b>', "<b>x</b>"],
  ["handlers and styles", "<p onclick='x()' style=\"color:red\" title=hi>t</p>", '<p title="hi">t</p>'],
  ["images load nothing", "<img src=x onerror=alert(1)>t", "t"],
  ["links lead nowhere", '<a href="javascript:alert(1)">t</a>', "<a>t</a>"],
  ["svg with a script", "<svg onload=x><svg></svg><script>y</script></svg>t", "t"],
  ["a comment", "a<!-- <script>x</script> -->b", "ab"],
  ["a comment that does not end", "a<!-- b", "a"],
  ["a value that would end its quotes", "<p title='\"><script>'>t</p>", '<p title="&quot;&gt;&lt;script&gt;">t</p>'],
  ["what is no tag", "1 < 2 > 0 <3", "1 &lt; 2 &gt; 0 &lt;3"],
  ["a tag that does not end", "a<b", "a&lt;b"],
  ["wrong nesting", "<b><i>x</b>y</i></p>", "<b><i>x</i></b>y"],
  ["unknown elements leave their text", "<custom-x>t</custom-x>", "t"],
  ["entities stay as they are", "&lt;b&gt; &amp;", "&lt;b&gt; &amp;"],
  ["base and meta", '<base href="//x"><meta http-equiv=refresh content="0;//x">t', "t"],
  ["elements without children", "<br><hr/>t", "<br><hr>t"],
];

for (const [name, html, want] of cases) {
  test(name, () => assert.equal(cleanHTML(html), want));
}

test("depth is bounded", () => {
  assert.ok(cleanHTML("<div>".repeat(10_000)).length < 200 * 11 + 1);
});

test("what looks like the beginning of many tags is read once", () => {
  const many = (part: string) => part.repeat(Math.ceil(500_000 / part.length));
  for (const html of [many("<a"), many("<a "), many("<a '"), many("<a \"'"), many("<svg "), `<svg>${many("<svg ")}`, `<script>${many("</script ")}`, `<${many("a")}`, `<a ${many("a ")}`, `<a ${many("a= ")}`, many("<!"), many("<!--"), many("</")]) {
    const start = performance.now();
    cleanHTML(html);
    const ms = performance.now() - start;
    assert.ok(ms < 10_000, `${html.slice(0, 20)}…: ${ms} ms`); // a few, and minutes when it is read over and over
  }
});

test("ids stay only if asked for", () => {
  assert.equal(cleanHTML('<td id="a" class="b">x</td>'), "<td>x</td>");
  assert.equal(cleanHTML('<td id="a" class="b">x</td>', true), '<td id="a">x</td>');
});

for (const [name, html, want] of [
  ["one line", "<b>x</b>", 48],
  ["one paragraph", "<p>x</p>", 48],
  ["one line in boxes", "<div>\n<div><p>x</p></div>\n</div>", 48],
  ["two paragraphs", "<p>x</p><p>y</p>", 81],
  ["breaks", "a<br>b<br><br>c", 108],
  ["a list", "<ul><li>a</li><li>b</li></ul>", 68],
  ["a heading and rows", "<h3>t</h3><table><tr><td>1</td><td>2</td></tr><tr><td>3</td></tr></table>", 121],
  ["code", "<pre>a\nb\n\nc\n</pre>", 108],
  ["long text", "x ".repeat(200), 128],
  ["closed details", "<details><summary>more</summary><p>a</p><ul><li>b</li></ul></details>", 48],
  ["open details", "<details open><summary>more</summary><p>a</p></details>", 81],
  ["details in closed details", "<details><summary>more</summary><details open><summary>a</summary>b<br>c</details></details><p>end</p>", 81],
  ["what is not shown", "<script>a<p>b<p>c</script><!-- <p>d --><b>x</b>", 48],
] as const) {
  test(`the height of ${name}`, () => assert.equal(estimatedHeight(html), want));
}
