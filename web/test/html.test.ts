import assert from "node:assert/strict";
import { test } from "node:test";
import { cleanHTML } from "../src/html.ts";

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
