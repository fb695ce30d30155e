// Stories about what a run shows: text, tables, plots and markup in the order in which they were made, whenever one looks.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import http from "node:http";
import { call, Visitor } from "./harness.mjs";
import { arrived, go, waiting } from "./work.mjs";

/** What is in the output, from top to bottom: lines of text, and the kinds of what is between them. */
const shown = (v) =>
  v.at("output").evaluate((output) =>
    [...output.querySelectorAll(".run > *")].flatMap((part) => {
      if (part.matches(".log")) return [...part.querySelectorAll(".log-line")].map((row) => `${row.dataset.stream}: ${row.innerText}`);
      const kind = part.querySelector("[data-testid]")?.dataset.testid ?? part.className.trim();
      return kind === "output-table" ? `table ${part.querySelector("tbody td").innerText}` : kind;
    }),
  );

const everything = `import sys, matplotlib.pyplot as plt, pandas as pd
from IPython.display import HTML, JSON, Latex, Markdown, SVG, display
print("\\x1b[32mone\\x1b[0m", end="")
print("warning", file=sys.stderr)
print(" and a half")
plt.figure(figsize=(5, 2)); plt.plot([1, 3, 2]); plt.show()
for i in range(0, 101, 50): print(f"\\rloading {i:3d} %", end="")
print()
display(pd.DataFrame({"city": ["Bern", "Oslo"], "rev": [12, 34.5]}))
print("two")
display(Markdown("## Result\\n\\nRevenue **grew** by \`7 %\`:\\n\\n| q | rev |\\n|---|---|\\n| 1 | 12 |\\n| 2 | 34 |"))
display(HTML("<h3>A <i>heading</i></h3><p>and a paragraph</p><script>document.title = 'hit'</script>"))
display(SVG('<svg xmlns="http://www.w3.org/2000/svg" width="120" height="40"><rect width="120" height="40" fill="teal"/></svg>'))
display(Latex("$x^2$"), JSON({"a": [1]}))
plt.figure(figsize=(4, 1.5)); plt.bar([1, 2], [2, 1]); plt.savefig("saved.png"); plt.show()
print("end")`;

const wanted = [
  "stdout: one and a half", "stderr: warning", "output-image", "stdout: loading 100 %", "table Bern", "stdout: two", "output-markdown", "output-html", "output-image",
  "stdout: $x^2$", "stdout: {", 'stdout:   "a": [', "stdout:     1", "stdout:   ]", "stdout: }", "output-image", "stdout: end",
];

export const notebook = {
  async "text, tables, plots and markup, in the order in which they were made"(browser) {
    const v = await Visitor.arrive(browser, { axe: true, permissions: ["clipboard-read", "clipboard-write"] });
    await v.open("order");
    await v.runToEnd("python", everything, { keep: true });
    assert.deepEqual(await shown(v), wanted);
    assert.equal(await v.page.title().then((title) => title.includes("hit")), false);
    for (const image of await v.at("output-image").all()) assert.ok(await image.evaluate((img) => img.decode().then(() => img.naturalWidth > 50)));
    await v.accessible("everything");
    await v.at("output").evaluate((output) => (output.scrollTop = 0));
    await v.screenshot("everything");
    await v.at("output").evaluate((output) => (output.scrollTop = output.scrollHeight));
    await v.screenshot("everything-end");
    await v.at("output-copy").click();
    await v.page.locator("[data-testid=output-copy][data-copied]").waitFor();
    assert.match(await v.page.evaluate(() => navigator.clipboard.readText()), /^one and a half\nwarning\nloading 100 %\n +city +rev\n0 +Bern[^]*\ntwo\n## Result[^]*\nend$/);
    // What was not saved is no file of the person's, and can be downloaded.
    await v.row("saved.png").waitFor();
    assert.equal(await v.at("file-row").count(), 1);
    await v.at("output-image").first().hover();
    const [download] = await Promise.all([v.page.waitForEvent("download"), v.at("image-download").first().click()]);
    assert.match(download.suggestedFilename(), /\.png$/);
    assert.deepEqual([...readFileSync(await download.path()).subarray(1, 4)], [...Buffer.from("PNG")]);
    // The same after a reload, in the other theme, on a phone.
    await v.page.reload();
    await arrived(v.page);
    await v.ended("ok");
    assert.deepEqual(await shown(v), wanted);
    await v.at("theme-switch").click();
    await v.page.frameLocator("[data-testid=output-html]").locator(":root").evaluate((root) => getComputedStyle(root).colorScheme).then((scheme) => assert.equal(scheme, "dark"));
    await v.at("output").evaluate((output) => (output.scrollTop = 0));
    await v.accessible("everything in the other theme");
    await v.screenshot("everything-dark");
    await v.page.setViewportSize({ width: 360, height: 740 });
    await v.noSidewaysScroll("with everything");
    await v.at("output-table").scrollIntoViewIfNeeded();
    await v.screenshot("everything-phone");
    await v.leave();
  },

  async "a reload in the middle of a notebook's cell"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("middle");
    const code = `import os, sys, time, matplotlib.pyplot as plt
print("a line", end="", flush=True)
print("trouble", file=sys.stderr, flush=True)
plt.plot([1, 2]); plt.show()
while not os.path.exists("/data/go"): time.sleep(0.02)
print("goes on")
plt.plot([2, 1]); plt.show()`;
    for (const reload of [false, true]) {
      await v.run("python", code, { keep: true });
      await v.sees("trouble");
      if (reload) await v.page.reload();
      await v.sees("trouble");
      assert.deepEqual(await shown(v), ["stdout: a line", "stderr: trouble"], "stderr is not in a line of stdout");
      await go("middle");
      await v.ended("ok");
      assert.deepEqual(await shown(v), ["stdout: a line", "stderr: trouble", "output-image", "stdout: goes on", "output-image"]);
      await call("delete_file", { session_id: "middle", filename: "go" });
    }
    await v.leave();
  },

  async "more plots than a model gets"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("plots");
    await v.runToEnd("python", 'from PIL import Image\nfor i in range(14):\n    print("plot", i)\n    display(Image.new("RGB", (150 + i, 40), "teal"))', { keep: true });
    const all = Array.from({ length: 14 }, (_, i) => [`stdout: plot ${i}`, "output-image"]).flat();
    assert.deepEqual(await shown(v), all);
    const last = v.at("output-image").last();
    await last.scrollIntoViewIfNeeded();
    assert.ok(await last.evaluate((img) => img.decode().then(() => img.naturalWidth === 163)), "the browser fetches what the result does not have");
    assert.equal(await v.at("file-row").count(), 0);
    await v.screenshot("many-plots");
    await v.leave();
  },

  async "a plot amid more text than is kept"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("omitted");
    await v.runToEnd("python", 'import matplotlib.pyplot as plt\nprint("first")\nplt.plot([1, 2]); plt.show()\nfor i in range(20000): print(f"{i:049d}")\nplt.plot([2, 1]); plt.show()\nprint("last")', { keep: true });
    const check = async () => {
      const texts = await v.output();
      assert.match(texts, /bytes of output are left out above\. All of it is in \/data\/\.outputs\/\S+\.txt/);
      assert.equal(await v.at("output-image").count(), 2);
      assert.equal(await v.page.locator(".run > .log").count(), 3, "text, plot, text, plot, text");
      assert.match(await v.page.locator(".run > .log").first().innerText(), /^first$/);
      assert.match(await v.page.locator(".run > .log").last().innerText(), /^last$/);
    };
    await check();
    const [download] = await Promise.all([v.page.waitForEvent("download"), v.at("output-download").click()]);
    assert.equal(readFileSync(await download.path(), "utf8"), `first\n${Array.from({ length: 20000 }, (_, i) => `${String(i).padStart(49, "0")}\n`).join("")}last\n`);
    assert.equal(await v.at("file-row").count(), 0);
    await v.screenshot("left-out");
    await v.page.reload();
    await arrived(v.page);
    await v.ended("ok");
    await check();
    await v.leave();
  },

  async "JavaScript shows tables and images"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("node-values");
    const png = "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAYAAACNMs+9AAAAFUlEQVR42mNk+M9Qz0AEYBxVSF+FABJADveWkH6oAAAAAElFTkSuQmCC";
    for (const [language, type] of [["javascript", ""], ["typescript", ": object[]"]]) {
      await v.runToEnd(language, `const rows${type} = [{ city: "Bern", rev: 1 }, { city: "<b>Oslo</b>", rev: 2 }];\nconsole.log("one"); console.error("oops"); console.log("two");\nconsole.table(rows);\nconsole.log("three");\nrows`, { keep: true });
      assert.deepEqual(await shown(v), ["stdout: one", "stderr: oops", "stdout: two", "table Bern", "stdout: three", "table Bern"]);
      assert.match(await v.output(), /<b>Oslo<\/b>/);
      await v.screenshot(`${language}-table`);
      await v.runToEnd(language, `Buffer.from("${png}", "base64")`, { keep: true });
      assert.deepEqual(await shown(v), ["output-image"]);
    }
    await v.leave();
  },

  async "a styled table of pandas, by day and by night"(browser) {
    const v = await Visitor.arrive(browser, { axe: true });
    await v.open("styler");
    await v.runToEnd("python", `import pandas as pd
df = pd.DataFrame({"sales": [120.5, -80.0, 45.2], "cost": [3, 4, 5], "share": [0.1, 0.7, 0.2]}, index=["north", "south", "east"])
def signs(value): return "color: red; font-weight: bold" if value < 0 else "color: black"
(df.style.set_caption("Sales by region").format("{:.1f}").map(signs, subset=["sales"])
   .highlight_max(color="yellow", subset=["cost"]).bar(subset=["share"], color="#5fba7d").map_index(lambda name: "background-color: navy"))`, { keep: true });
    const table = v.at("output-table");
    await table.getByRole("table", { name: "Sales by region" }).waitFor();
    const look = (name) =>
      table.getByRole(name === "north" ? "rowheader" : "cell", { name, exact: true }).first().evaluate((cell) => {
        const { color, backgroundColor, backgroundImage, fontWeight } = getComputedStyle(cell);
        return { color, backgroundColor, backgroundImage, fontWeight };
      });
    for (const theme of ["light", "dark"]) {
      assert.equal(await v.page.locator("html").getAttribute("data-theme"), theme);
      const [negative, positive, best, bar, name] = [await look("-80.0"), await look("120.5"), await look("5.0"), await look("0.7"), await look("north")];
      assert.match(negative.color, /^rgb\(2\d\d, \d\d?, \d\d?\)$/, "red");
      assert.equal(negative.fontWeight, "700");
      assert.equal(positive.color === "rgb(0, 0, 0)", theme === "light", "black is for a light background");
      assert.deepEqual([best.backgroundColor, best.color], ["rgb(255, 255, 0)", "rgb(22, 25, 29)"]);
      assert.match(bar.backgroundImage, /rgb\(95, 186, 125\)/);
      assert.deepEqual([name.backgroundColor, name.color], ["rgb(0, 0, 128)", "rgb(255, 255, 255)"]);
      await v.accessible(`styled, ${theme}`);
      await v.screenshot(`styled-${theme}`);
      await v.at("theme-switch").click();
    }
    await v.leave();
  },

  async "small tables need no scrollbar"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("scrollbars");
    await v.runToEnd("python", `import pandas as pd
for n in range(1, 5): display(pd.DataFrame({"a": range(n), "b": ["x"] * n}))
display(pd.DataFrame({"a": [1, 2, 3]}, index=pd.MultiIndex.from_tuples([("x", 1), ("y", 1), ("y", 2)])))
display(pd.DataFrame({"a": [1]}).style.set_caption("A caption that is wider than its table"))`, { keep: true });
    for (const width of [1920, 1360, 1100, 390]) {
      await v.page.setViewportSize({ width, height: 900 });
      const sizes = await v.page.locator(".table-scroll").evaluateAll((all) => all.map((s) => [s.scrollHeight - s.clientHeight, s.scrollWidth - s.clientWidth]));
      assert.deepEqual(sizes, Array(6).fill([0, 0]), `${width} px`);
    }
    await v.leave();
  },

  async "colours of a terminal's backgrounds"(browser) {
    const v = await Visitor.arrive(browser, { axe: true });
    await v.open("backgrounds");
    await v.runToEnd("python", `for bg in [*range(40, 48), *range(100, 108)]:
    print(f"\x1b[{bg}m {bg} \x1b[0m" + "".join(f"\x1b[{bg};{fg}m {fg} \x1b[0m" for fg in [*range(30, 38), *range(90, 98)]) + f"\x1b[7;{bg}m inverse \x1b[0m")
print("\x1b[7;31m red \x1b[0m \x1b[7m plain \x1b[0m \x1b[38;5;226m yellow \x1b[0m \x1b[38;5;17m navy \x1b[0m \x1b[48;2;250;250;210m pale \x1b[0m")`.replaceAll("\x1b", "\\x1b"));
    for (const theme of ["light", "dark"]) {
      const blue = v.at("output").getByText("97", { exact: true }).nth(4);
      assert.deepEqual(await blue.evaluate((span) => [getComputedStyle(span).color, getComputedStyle(span).backgroundColor]), ["rgb(255, 255, 255)", "rgb(36, 114, 200)"]);
      await v.accessible(`backgrounds, ${theme}`);
      await v.screenshot(`backgrounds-${theme}`);
      await v.at("theme-switch").click();
    }
    await v.leave();
  },

  async "links in Markdown are followed by a click only"(browser) {
    const asked = [];
    const site = http.createServer((request, response) => {
      asked.push(`${request.url} ${request.headers.referer}`);
      response.setHeader("Content-Type", "text/html");
      response.end("<title>elsewhere</title>");
    });
    await new Promise((resolve) => site.listen(0, "127.0.0.1", resolve));
    const origin = `http://127.0.0.1:${site.address().port}`;
    try {
      const v = await Visitor.arrive(browser, { axe: true });
      await v.open("markdown-links");
      await v.runToEnd("python", `from IPython.display import Markdown
Markdown("See [the **docs**](${origin}/a?b=c), <${origin}>, [script](javascript:document.title='hit'), [data](data:text/html,x), [file](/files/x) and ![image](${origin}/a.png).")`, { keep: true });
      const links = v.at("output-markdown").locator("a");
      assert.deepEqual(await links.evaluateAll((all) => all.map((a) => [a.innerText, a.href, a.target, a.rel, a.title])), [
        ["the docs", `${origin}/a?b=c`, "_blank", "noopener noreferrer nofollow", `${origin}/a?b=c`],
        [origin, `${origin}/`, "_blank", "noopener noreferrer nofollow", `${origin}/`],
      ]);
      assert.match(await v.output(), /script, data, file and image\./);
      await links.first().hover();
      await v.accessible("links");
      await v.screenshot("links");
      assert.deepEqual([asked, v.problems], [[], []], "nothing was asked of another server yet");
      v.tolerate(/^window/, new RegExp(`^request to another origin: ${origin}/`));
      const [opened] = await Promise.all([v.context.waitForEvent("page"), links.first().click()]);
      await opened.waitForFunction(() => document.title === "elsewhere");
      assert.equal(await opened.evaluate(() => opener), null);
      assert.equal(asked[0], "/a?b=c undefined", "without a referrer");
      await v.leave();
    } finally {
      site.closeAllConnections();
      site.close();
    }
  },

  async "a run that waits is queued in the history"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("history-waits");
    await v.run("python", waiting("first", "end"), { keep: true });
    await v.sees("first");
    await v.write("python", "print('second')", { keep: true });
    await v.at("editor").locator(".cm-content").press("ControlOrMeta+Enter");
    await call("run", { session: "history-waits", env: "python", code: "print('theirs')", background: true });
    const row = (text) => v.at("history-item").filter({ hasText: text });
    await row("second").getByText("queued").waitFor();
    await row("another client").getByText("queued").waitFor();
    await row("first").getByText("running").waitFor();
    await v.screenshot("history-queued");
    await v.page.reload();
    await row("second").getByText("queued").waitFor();
    await go("history-waits");
    for (const text of ["second", "another client", "first"]) await row(text).getByText("done").waitFor();
    await v.leave();
  },

  async "the interpreter is restarted"(browser) {
    const v = await Visitor.arrive(browser, { axe: true });
    await v.open("restarted");
    const button = v.page.getByRole("button", { name: "Restart interpreter" });
    await v.write("python", "x = 41", { keep: false });
    assert.ok(await button.isDisabled(), "there is nothing to restart");
    await v.runToEnd("python", "x = 41", { keep: true });
    await v.runToEnd("javascript", "var y = 7", { keep: true });
    await v.at("language-select").selectOption("python");
    await button.click();
    await v.at("confirm-dialog").getByText("variables").waitFor();
    await v.accessible("asking");
    await v.screenshot("restart");
    await v.at("confirm-no").click();
    assert.match(await v.runToEnd("python", "x + 1", { keep: true }), /42/, "not without consent");
    await button.click();
    await v.at("confirm-yes").click();
    await v.at("toast").getByText("variables are gone").waitFor();
    assert.match(await v.runToEnd("python", "x + 1", { keep: true, state: "failed" }), /NameError/);
    assert.match(await v.runToEnd("javascript", "y + 1", { keep: true }), /8/, "another language has another interpreter");
    // Running code is stopped; a restart is no run of the person's.
    await v.run("python", waiting("going", "end"), { keep: true });
    await v.sees("going");
    await button.click();
    await v.at("confirm-dialog").getByText("running code is stopped").waitFor();
    await v.at("confirm-yes").click();
    await v.ended("stopped");
    await v.at("toast").getByText("variables are gone").waitFor();
    assert.match(await v.runToEnd("python", "print('afterwards')", { keep: true }), /afterwards/);
    assert.equal(await v.at("history-item").count(), 7);
    await v.page.reload();
    await arrived(v.page);
    await v.sees("afterwards");
    assert.equal(await v.at("history-item").count(), 7);
    await v.page.setViewportSize({ width: 360, height: 740 });
    await v.noSidewaysScroll("with the button");
    const [keep, restart] = await Promise.all([v.page.locator(".switch").boundingBox(), button.boundingBox()]);
    assert.ok(Math.abs(keep.y + keep.height / 2 - restart.y - restart.height / 2) < 2, "on one line");
    await v.screenshot("restart-phone");
    await v.leave();
  },

  async "frames are as high as what they show"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("frame-heights");
    const all = ["<b>one line</b>", "<p>one paragraph</p>", "<h3>title</h3><p>text</p>", "<h1>big</h1>", "<ul><li>a</li><li>b</li><li>c</li></ul>", "<details><summary>more</summary><p>a</p><p>b</p><p>c</p></details>", "<h4>t</h4><table><tr><th>a</th></tr><tr><td>1</td></tr></table>"];
    await v.runToEnd("python", `from IPython.display import HTML, display\nfor html in ${JSON.stringify(all)}: display(HTML(html))`, { keep: true });
    await v.screenshot("frames");
    for (let i = 0; i < all.length; i++) {
      const frame = v.at("output-html").nth(i);
      await frame.scrollIntoViewIfNeeded(); // frames are loaded lazily
      const body = frame.contentFrame().locator("body");
      const [content, height] = await body.evaluate((b) => [b.getBoundingClientRect().bottom + 10, innerHeight]);
      assert.ok(content <= height && height - content < 20, `${all[i]}: ${content} px in ${height} px`);
    }
    await v.leave();
  },
};
