// Stories about the page, each with a browser context of its own: node stories.mjs CONFIG. Each is told as a line of JSON.
import assert from "node:assert/strict";
import { ask, call, config, launch, tell, Visitor } from "./harness.mjs";
import { hostile } from "./hostile.mjs";
import { impatience } from "./impatience.mjs";
import { notebook } from "./notebook.mjs";
import { settings } from "./settings.mjs";
import { work } from "./work.mjs";

const plot = 'import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.title("Sales")\nplt.show()\nprint("drawn")';

async function anybody(browser, theme) {
  const v = await Visitor.arrive(browser, { axe: true, colorScheme: theme });
  await v.page.goto(config.url);
  await v.at("key-dialog").waitFor();
  await v.accessible(`${theme}: asking for the key`);
  await v.open(`look-${theme}`); // the address with the key, pasted into the same tab
  await v.upload(`sales-${theme}.csv`, "region,amount\nnorth,120\nsouth,80\n");
  await v.runToEnd("python", `import sys\nprint("\\x1b[32mok\\x1b[0m \\x1b[31;1mred\\x1b[0m \\x1b[33myellow\\x1b[34m blue\\x1b[0m")\nprint("a warning", file=sys.stderr)\n${plot}`, { keep: true });
  await v.at("output-image").waitFor();
  await v.screenshot(theme);
  await v.accessible(`${theme}: a run`);
  for (const [open, dialog] of [["settings-open", "settings-drawer"], ["connect-open", "connect-dialog"]]) {
    await v.at(open).click();
    await v.at(dialog).waitFor();
    await v.accessible(`${theme}: ${dialog}`);
    await v.screenshot(`${theme}-${dialog}`);
    await v.page.keyboard.press("Escape");
    await v.at(dialog).waitFor({ state: "hidden" });
  }
  await v.row(`sales-${theme}.csv`).getByTestId("file-preview").click();
  await v.at("preview-body").getByRole("cell", { name: "120" }).waitFor();
  await v.accessible(`${theme}: a preview`);
  await v.at("preview-close").click();
  await v.runToEnd("python", "1 / 0", { state: "failed" });
  await v.accessible(`${theme}: a failure`);
  await v.screenshot(`${theme}-failure`);
  await v.at("theme-switch").click();
  assert.equal(await v.page.locator("html").getAttribute("data-theme"), theme === "light" ? "dark" : "light");
  await v.leave();
}

const stories = {
  // The longest comes first, so that nobody waits for it at the end.
  async "an example of everything, in every language"(browser) {
    const v = await Visitor.arrive(browser, { permissions: ["clipboard-read", "clipboard-write"] });
    await v.open("examples");
    for (const language of ["python", "javascript", "typescript", "shell"]) {
      await v.at("language-select").selectOption(language);
      if (language === "python") await v.page.getByText(/3\.\d+.*pandas/).waitFor(); // version and libraries
      for (const [example, state] of [["plot", "ok"], ["csv", "ok"], ["fail", "failed"]]) {
        await v.at("examples-open").click();
        await v.page.locator(`[data-testid=example-item][data-example=${example}]`).click();
        await v.at("run").click();
        await v.ended(state);
      }
      await v.page.locator("[data-testid=output] [data-stream=stderr]").first().waitFor();
    }
    for (const name of ["sales.csv", "summary.csv", "totals.json", "wave.svg"]) await v.row(name).waitFor();
    await v.runToEnd("shell", "printf '\\e[31mred\\e[0m\\ntwo\\n'");
    await v.at("output-copy").click();
    await v.page.locator("[data-testid=output-copy][data-copied]").waitFor();
    assert.equal(await v.page.evaluate(() => navigator.clipboard.readText()), "red\ntwo");
    await v.leave();
  },

  async "from the first visit to a plot"(browser) {
    const v = await Visitor.arrive(browser);
    await v.page.goto(config.url);
    await v.at("key-dialog").waitFor();
    assert.ok(!v.calls.some((path) => path.startsWith("/mcp")), "it asks the server before there is a key");
    assert.equal(await v.page.locator("html").getAttribute("data-ready"), "true");
    const weight = await v.page.evaluate(() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")].reduce((sum, e) => sum + e.encodedBodySize, 0));
    assert.ok(weight > 1000 && weight < 250 * 1024, `${weight} bytes`);
    await v.at("key-input").fill(config.token);
    await v.at("key-save").click();
    await v.at("key-dialog").waitFor({ state: "detached" });
    assert.match(await v.at("session-input").inputValue(), /^\S+$/, "there is a conversation from the start");
    await v.at("language-select").locator("option[value=typescript]").waitFor({ state: "attached" });
    await v.at("examples-open").click();
    await v.page.locator("[data-testid=example-item][data-example=plot]").click();
    await v.at("run").click();
    await v.ended("ok");
    await v.at("output-image").first().waitFor();
    assert.ok(await v.at("output-image").first().evaluate((img) => img.decode().then(() => img.naturalWidth > 100)));
    assert.equal(await v.at("status").getAttribute("data-exit-code"), "0");
    assert.match(await v.at("status").innerText(), /\d\s?(ms|s)\b[^]*\d\s?(KB|MB)/);
    assert.equal(await v.page.evaluate(() => Object.values(localStorage).join()).then((all) => all.includes(config.token)), false, "the key stays on the device unasked");
    await v.leave();
  },

  async "the key in the address goes out of it"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("address");
    assert.equal(v.page.url(), `${config.url}/`);
    assert.ok(!(await v.at("key-dialog").isVisible()));
    await v.page.reload();
    await v.at("language-select").locator("option[value=shell]").waitFor({ state: "attached" });
    assert.ok(!(await v.page.content()).includes(config.token), "the key is in the page");
    await v.leave();
  },

  async "a wrong key"(browser) {
    const v = await Visitor.arrive(browser);
    v.tolerate(/status of 401/);
    await v.page.goto(`${config.url}/#token=wrong`);
    await v.at("key-dialog").waitFor();
    await v.at("key-input").fill("wrong, too".replaceAll(", ", "-"));
    await v.at("key-save").click();
    await v.at("key-error").filter({ hasText: /key/ }).waitFor();
    await v.at("key-input").fill(config.token);
    await v.at("key-save").click();
    await v.at("key-dialog").waitFor({ state: "detached" });
    assert.match(await v.runToEnd("shell", "echo let in"), /let in/);
    await v.leave();
  },

  async "output comes while it runs, and stderr is told apart"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("stream");
    await v.run("python", 'import os, sys, time\nprint("first \\x1b[31mred\\x1b[0m", flush=True)\nprint("oops", file=sys.stderr, flush=True)\nwhile not os.path.exists("/data/go"): time.sleep(0.02)\nprint("last")');
    await v.sees("first");
    await v.page.locator("[data-testid=output] [data-stream=stderr]", { hasText: "oops" }).waitFor();
    assert.equal(await v.at("status").getAttribute("data-state"), "running");
    assert.ok(!(await v.output()).includes("last"));
    await call("upload_file", { session_id: "stream", filename: "go", content: "Z28=" });
    const output = await v.ended("ok");
    assert.match(output, /first red[^]*last/); // pipes keep no order between them
    assert.match(output, /oops/);
    assert.ok(!output.includes("\x1b") && !output.includes("[31m"), "colours are shown, not printed");
    await v.leave();
  },

  async "stop"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("stop");
    for (const [keep, stop] of [[false, () => v.at("stop").click()], [true, () => v.page.keyboard.press("Escape")]]) {
      await v.run("python", 'import time\nprint("on", flush=True)\nwhile True: time.sleep(0.05)', { keep });
      await v.sees("on");
      await stop();
      await v.ended("stopped");
      assert.equal(await v.at("status").getAttribute("data-cause"), "cancelled");
    }
    assert.match(await v.runToEnd("python", 'print("still here")'), /still here/);
    await v.leave();
  },

  async "upload, analyse, download; changed files are marked; delete"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("files");
    await v.upload("numbers.csv", "name,value\na,1\nb,41\n");
    await v.upload("other.txt", "untouched");
    const output = await v.runToEnd("python", 'import pandas as pd\nprint(pd.read_csv("numbers.csv").value.sum())\nimport os\nos.makedirs("out", exist_ok=True)\nopen("out/bytes.bin", "wb").write(bytes(i * 7 % 256 for i in range(70000)))');
    assert.match(output, /42/);
    await v.row("out/bytes.bin").and(v.page.locator("[data-mark=new]")).waitFor();
    assert.equal(await v.row("other.txt").getAttribute("data-mark"), null);
    const bytes = await v.download("out/bytes.bin");
    assert.ok(bytes.equals(Buffer.from(Array.from({ length: 70000 }, (_, i) => (i * 7) % 256))), "the bytes of the download");
    await v.row("numbers.csv").getByTestId("file-preview").click();
    await v.at("preview-body").getByRole("cell", { name: "41" }).waitFor();
    await v.at("preview-close").click();
    await v.row("other.txt").getByTestId("file-delete").click();
    await v.at("confirm-yes").click();
    await v.row("other.txt").waitFor({ state: "detached" });
    const { artifacts } = await call("list_artifacts", { session_id: "files" });
    assert.deepEqual(artifacts.map((a) => a.path).sort(), ["/mnt/data/numbers.csv", "/mnt/data/out/bytes.bin"]);
    await v.leave();
  },

  async "a look at every kind of file"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("previews");
    await v.runToEnd("python", `import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.savefig("chart.png")\nplt.savefig("chart.svg")\nplt.savefig("report.pdf")\nplt.close()\nopen("notes.txt", "w").write("a note")\nopen("raw.bin", "wb").write(bytes(range(256)))`);
    const look = async (name, shown) => {
      await v.row(name).getByTestId("file-preview").click();
      await shown(v.at("preview-body"));
      await v.page.keyboard.press("Escape");
      await v.at("preview-dialog").waitFor({ state: "detached" });
    };
    for (const name of ["chart.png", "chart.svg"]) {
      await look(name, async (body) => assert.ok(await body.locator("img").evaluate((img) => img.decode().then(() => img.naturalWidth > 100)), name));
    }
    await look("notes.txt", (body) => body.getByText("a note").waitFor());
    await look("raw.bin", (body) => body.getByText(/download/i).waitFor());
    await look("report.pdf", (body) => body.locator("iframe[src^='blob:'], a[href^='blob:']").first().waitFor());
    await v.leave();
  },

  async "variables live on, and a cell of the history runs again"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("notebook");
    await v.runToEnd("python", "x = 41", { keep: true });
    assert.match(await v.runToEnd("python", "x + 1", { keep: true }), /42/);
    assert.match(await v.runToEnd("python", "x + 1", { keep: false, state: "failed" }), /NameError/);
    assert.equal(await v.at("status").getAttribute("data-exit-code"), "1");
    assert.equal(await v.at("history-item").count(), 3);
    await v.at("history-item").filter({ hasText: "x = 41" }).getByTestId("history-rerun").click();
    await v.ended("ok");
    assert.equal(await v.at("history-item").count(), 4);
    await v.leave();
  },

  async "recent conversations, and the code of each"(browser) {
    const v = await Visitor.arrive(browser);
    await call("run_code", { conversationId: "recent-elsewhere", language: "shell", code: "true" });
    await v.open("recent-1");
    await v.runToEnd("shell", "echo one > one.txt");
    await v.at("session-new").click();
    const fresh = await v.at("session-input").inputValue();
    assert.ok(fresh !== "recent-1" && fresh.length > 8, fresh);
    await v.row("one.txt").waitFor({ state: "detached" });
    await v.at("session-menu").click();
    await v.page.locator("[data-testid=session-item][data-session=recent-elsewhere]").waitFor(); // of another client: the server knows it
    await v.page.locator("[data-testid=session-item][data-session=recent-1]").click();
    await v.row("one.txt").waitFor();
    assert.match(await v.at("editor").locator(".cm-content").innerText(), /echo one/);
    await v.leave();
  },

  async "environment, time limit and network"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("settings");
    await v.at("settings-open").click();
    await v.at("env-add").click();
    await v.at("env-name").last().fill("GREETING");
    await v.at("env-value").last().fill("hallo");
    await v.at("timeout-input").fill("1");
    await v.at("settings-close").click();
    assert.match(await v.runToEnd("shell", 'echo "$GREETING"; sleep 30', { state: "failed" }), /hallo/);
    assert.equal(await v.at("status").getAttribute("data-cause"), "timeout");
    await v.at("settings-open").click();
    await v.at("timeout-input").fill("");
    await v.at("network-switch").setChecked(true, { force: true });
    await v.at("settings-close").click();
    assert.match(await v.runToEnd("shell", "ls /sys/class/net; cat /proc/net/dev"), /tap0/);
    await v.leave();
  },

  async "long output stays smooth"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("long");
    await v.runToEnd("shell", "seq 1 8000");
    const drawn = await v.page.locator("[data-testid=output] [data-stream]").count();
    assert.ok(drawn > 5 && drawn < 1000, `${drawn} lines in the page`);
    await v.leave();
  },

  async "without a mouse"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("keyboard");
    const press = (...keys) => keys.reduce((before, key) => before.then(() => v.page.keyboard.press(key)), Promise.resolve());
    const focused = () => v.page.evaluate(() => document.activeElement.closest("[data-testid]")?.dataset.testid ?? "");
    const tabTo = async (id) => {
      for (let i = 0; i < 40 && (await focused()) !== id; i++) await press("Tab");
      assert.equal(await focused(), id, "reached by Tab");
    };
    await v.page.evaluate(() => document.activeElement.blur());
    await tabTo("language-select");
    await v.page.keyboard.type("Shell");
    assert.equal(await v.at("language-select").inputValue(), "shell");
    await tabTo("editor");
    await press("Control+a");
    await v.page.keyboard.type("echo typed");
    await press("Control+Enter");
    assert.match(await v.ended("ok"), /typed/);
    assert.equal(await focused(), "editor", "running leaves the focus where it was");
    await press("Escape", "Tab");
    assert.notEqual(await focused(), "editor", "Escape, Tab leaves the editor");
    await tabTo("output-copy");
    await v.page.keyboard.press("Shift+Tab");
    await v.leave();
  },

  async "a session that is busy says so"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("busy");
    const { run_id } = await call("run_code", { conversationId: "busy", language: "shell", code: "sleep 60", background: true });
    for (let i = 0; i < 3; i++) await call("run_code", { conversationId: "busy", language: "shell", code: "sleep 60", background: true });
    await v.runToEnd("shell", "echo no room", { state: "error" });
    assert.match(`${await v.output()} ${await v.at("banner").innerText()}`, /progress|busy|wait/i);
    await call("cancel_run", { run_id });
    await call("close_session", { session_id: "busy" });
    await v.leave();
  },

  "anybody can use it by day": (browser) => anybody(browser, "light"),
  "anybody can use it by night": (browser) => anybody(browser, "dark"),

  async "on a phone"(browser) {
    const v = await Visitor.arrive(browser, { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2, axe: true });
    await v.open("phone");
    await v.noSidewaysScroll("empty");
    for (const menu of ["session-menu", "examples-open"]) {
      await v.at(menu).click();
      await v.page.locator("[role=menu]:visible").waitFor();
      await v.noSidewaysScroll(menu);
      await v.page.keyboard.press("Escape");
    }
    await v.upload(`a-file-with-a-very-long-name-${"x".repeat(120)}.csv`, "a,b\n1,2\n");
    await v.runToEnd("python", `print("wide " * 200)\n${plot}`, { keep: true });
    await v.at("output-image").waitFor();
    await v.noSidewaysScroll("with a plot and a long name");
    assert.ok(await v.page.locator(".fact").evaluateAll((all) => all.length > 2 && all.every((fact) => fact.getClientRects().length === 1)), "no fact breaks over two lines");
    await v.screenshot("phone");
    await v.accessible("phone");
    await v.at("settings-open").click();
    await v.at("settings-drawer").waitFor();
    await v.noSidewaysScroll("settings");
    await v.leave();
  },

  async "an upload shows how far it is"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("progress");
    let go;
    const held = new Promise((resolve) => (go = resolve));
    await v.page.route("**/files/**", async (route) => {
      if (route.request().method() === "PUT") await held;
      await route.continue();
    });
    await v.at("upload-input").setInputFiles({ name: "slow.bin", mimeType: "application/octet-stream", buffer: Buffer.alloc(100_000) });
    await v.at("upload-progress").waitFor();
    go();
    await v.row("slow.bin").waitFor();
    await v.at("upload-progress").waitFor({ state: "detached" });
    // Under a name that is taken, it asks.
    await v.at("upload-input").setInputFiles({ name: "slow.bin", mimeType: "application/octet-stream", buffer: Buffer.from("short") });
    await v.at("confirm-yes").click();
    await v.row("slow.bin").getByText("5 B").waitFor();
    await v.leave();
  },

  async "how to connect a client"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("connect");
    await v.at("connect-open").click();
    const dialog = v.at("connect-dialog");
    await dialog.waitFor();
    assert.ok(!(await dialog.innerText()).includes(config.token), "the key is shown unasked");
    assert.match(await v.page.locator("[data-testid=connect-dialog]").evaluate((d) => d.textContent), new RegExp(`${config.url}/mcp`));
    await v.at("connect-reveal").setChecked(true, { force: true });
    assert.ok((await dialog.evaluate((d) => d.textContent)).includes(config.token), "the key is shown when asked for");
    await v.leave();
  },

  ...settings,
  ...notebook,
  ...work,
  ...hostile,
  ...impatience,
};

// Told when all others have been: what they do, everybody would notice.
const alone = {
  async "the server restarts under the open page"(browser) {
    const v = await Visitor.arrive(browser);
    v.tolerate(/ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_EMPTY_RESPONSE|ERR_NETWORK_IO_SUSPENDED/);
    await v.open("restart");
    await v.runToEnd("python", "kept = 1", { keep: true });
    await ask("stop");
    await v.page.locator("[data-testid=banner][data-kind=offline]").waitFor();
    await ask("start");
    await v.page.locator("[data-testid=banner][data-kind=offline]").waitFor({ state: "hidden" });
    assert.match(await v.runToEnd("python", 'print("back", "kept" in globals())', { keep: true }), /back False/);
    await v.leave();
  },
};

/** Tells a story to its end. */
async function tellStory(browser, name, story) {
  const start = Date.now();
  const contexts = [];
  const own = { newContext: async (options) => contexts[contexts.push(await browser.newContext(options)) - 1] };
  let error;
  try {
    await story(own);
  } catch (err) {
    error = String(err.stack ?? err);
    for (const [i, context] of contexts.entries()) {
      await context.pages()[0]?.screenshot({ path: `${config.screenshots}/failed-${name.replaceAll(/\W+/g, "-")}-${i}.png` }).catch(() => {});
    }
  } finally {
    await Promise.all(contexts.map((context) => context.close()));
  }
  tell({ event: "story", name, error, ms: Date.now() - start });
}

// Each story has a context and conversations of its own, so some are told at the same time: most of one is waiting.
const atOnce = 3;
const browser = await launch();
try {
  const chosen = (all) => Object.entries(all).filter(([name]) => !config.only || name.includes(config.only));
  const waiting = chosen(stories).values();
  await Promise.all(
    Array.from({ length: atOnce }, async () => {
      for (const [name, story] of waiting) await tellStory(browser, name, story);
    }),
  );
  for (const [name, story] of chosen(alone)) await tellStory(browser, name, story);
} finally {
  await browser.close();
}
process.exit(0);
