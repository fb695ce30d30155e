// Stories about what a run shows: text, tables, plots and markup in the order in which they were made, whenever one looks.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { call, Visitor } from "./harness.mjs";
import { arrived, go } from "./work.mjs";

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
};
