// What the stories about the page share: one browser, visitors who are watched, and helpers named after what a person does.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import readline from "node:readline";
import { chromium } from "playwright-core";

export const config = JSON.parse(process.argv[2]);
const axeSource = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const patience = 30_000; // on a busy machine

/** Tells the Go test, one line of JSON each. */
export const tell = (event) => process.stdout.write(`${JSON.stringify(event)}\n`);

const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Has the Go test do something to the server, and waits until it is done. */
export async function ask(event) {
  tell({ event });
  const { done } = await lines.next();
  assert.ok(!done, "the test has gone");
}

export const launch = () =>
  chromium.launch({
    executablePath: config.browser,
    args: [
      "--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync",
      "--disable-features=Translate,OptimizationHints,MediaRouter,AutofillServerCommunication", "--no-first-run", "--no-default-browser-check",
    ],
  });

/** A browser with a person in front of it, who sees whatever goes wrong. */
export class Visitor {
  problems = [];
  tolerated = [];
  calls = []; // paths asked of the server

  static async arrive(browser, { axe = false, server = config.url, ...options } = {}) {
    const v = new Visitor();
    v.server = server;
    v.context = await browser.newContext({ viewport: { width: 1360, height: 850 }, reducedMotion: "reduce", acceptDownloads: true, ...options });
    v.context.setDefaultTimeout(patience);
    await v.context.addInitScript(() => {
      globalThis.violations = [];
      addEventListener("securitypolicyviolation", (e) => globalThis.violations.push(`${e.violatedDirective}: ${e.blockedURI} ${e.sample}`));
    });
    if (axe) await v.context.addInitScript({ content: axeSource });
    v.page = await v.context.newPage();
    v.watch(v.page);
    v.context.on("page", (p) => v.problems.push(`window: ${p.url()}`));
    v.context.on("request", (r) => {
      const url = new URL(r.url());
      if (["blob:", "data:", "about:", "chrome:", "chrome-extension:"].includes(url.protocol)) return; // the latter two: the browser's own PDF viewer
      if (url.origin !== server) v.problems.push(`request to another origin: ${r.url()}`);
      v.calls.push(url.pathname);
    });
    return v;
  }

  watch(page) {
    const problem = (kind, text) => this.problems.push(`${kind}: ${text}`);
    page.on("console", (m) => ["error", "warning"].includes(m.type()) && problem(`console ${m.type()}`, m.text()));
    page.on("pageerror", (e) => problem("script error", e.stack ?? e.message));
    page.on("crash", () => problem("crash", "the tab is gone"));
    page.on("dialog", (d) => {
      problem("dialog", d.message());
      void d.dismiss();
    });
  }

  /** Another tab that the person opens. */
  async newTab() {
    const page = await this.context.newPage();
    this.problems = this.problems.filter((p) => !p.startsWith("window"));
    this.watch(page);
    return page;
  }

  /** What a story expects to go wrong. */
  tolerate(...patterns) {
    this.tolerated.push(...patterns);
  }

  async leave() {
    const violations = await this.page.evaluate(() => globalThis.violations).catch(() => []);
    await this.page.unrouteAll({ behavior: "ignoreErrors" }); // a request of the page may be on its way
    await this.context.close();
    const problems = [...this.problems, ...violations.map((v) => `policy: ${v}`)].filter((p) => !this.tolerated.some((t) => t.test(p)));
    assert.deepEqual(problems, [], "what the browser complained about");
  }

  at(id) {
    return this.page.getByTestId(id);
  }

  /** Opens the page with the key in the address, in a conversation. */
  async open(conversation, { key = config.token } = {}) {
    await this.page.goto(`${this.server}/#token=${key}`);
    await this.page.locator("html[data-ready=true]").waitFor();
    if (conversation) await this.converse(conversation);
    await this.at("language-select").locator("option[value=shell]").waitFor({ state: "attached" }); // the server has been heard
  }

  /** Types the name of a conversation, and agrees to start it where it is new. */
  async converse(conversation, page = this.page) {
    await page.getByTestId("session-input").fill(conversation);
    await page.getByTestId("session-input").press("Enter");
    const here = page.locator(`html[data-conversation=${JSON.stringify(conversation)}]`);
    await here.or(page.getByTestId("confirm-yes")).first().waitFor({ state: "attached" });
    if (await page.getByTestId("confirm-yes").count()) await page.getByTestId("confirm-yes").click();
    await here.waitFor({ state: "attached" });
  }

  async write(language, code, { keep = false } = {}) {
    await this.at("language-select").selectOption(language);
    await this.at("persist-switch").setChecked(keep, { force: true });
    await this.paste(code);
  }

  /** Replaces the code in the editor, as from the clipboard. */
  async paste(code) {
    const content = this.at("editor").locator(".cm-content");
    await content.press("ControlOrMeta+a");
    await content.evaluate((element, text) => {
      const clipboardData = new DataTransfer();
      clipboardData.setData("text/plain", text);
      element.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
    }, code);
  }

  async run(language, code, options) {
    await this.write(language, code, options);
    await this.at("run").click();
  }

  /** Runs to the end, and returns what is in the output. */
  async runToEnd(language, code, options) {
    await this.run(language, code, options);
    return this.ended(options?.state ?? "ok");
  }

  async ended(state) {
    const status = this.at("status");
    await this.page.waitForFunction(
      () => !["idle", "running"].includes(document.querySelector("[data-testid=status]").dataset.state) && document.querySelector("[data-testid=stop]").hidden,
    );
    const output = await this.output();
    assert.equal(await status.getAttribute("data-state"), state, `${await status.innerText()}: ${output}`);
    return output;
  }

  async output() {
    return this.at("output").innerText();
  }

  async sees(text) {
    await this.at("output").getByText(text).first().waitFor();
  }

  row(name) {
    return this.page.locator(`[data-testid=file-row][data-name=${JSON.stringify(name)}]`);
  }

  async upload(name, content) {
    await this.at("upload-input").setInputFiles({ name, mimeType: "application/octet-stream", buffer: Buffer.from(content) });
    await this.row(name).waitFor();
  }

  async download(name) {
    const [download] = await Promise.all([this.page.waitForEvent("download"), this.row(name).getByTestId("file-download").click()]);
    assert.equal(download.suggestedFilename(), name.split("/").at(-1));
    return readFileSync(await download.path());
  }

  /** Runs axe on the page as it is. */
  async accessible(what) {
    const found = await this.page.evaluate(async () => {
      const { violations } = await globalThis.axe.run(document, {
        runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
        resultTypes: ["violations"],
        preload: false,
      });
      return violations.map((v) => `${v.impact} ${v.id}: ${v.help}: ${v.nodes.map((n) => `${n.html.slice(0, 160)} (${n.any.map((check) => check.message).join("; ")})`).join(" | ")}`);
    });
    assert.deepEqual(found, [], what);
  }

  /** The layout is no wider than the screen. (innerWidth of a phone is no measure: it grows with what sticks out.) */
  async noSidewaysScroll(what) {
    const wide = await this.page.evaluate(() => Math.max(document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth));
    assert.equal(wide, this.page.viewportSize().width, what);
  }

  screenshot(name) {
    return this.page.screenshot({ path: `${config.screenshots}/${name}.png`, animations: "disabled" });
  }
}

/** Calls a tool beside the page. */
export async function call(tool, args) {
  const response = await fetch(`${config.url}/mcp`, {
    method: "POST",
    headers: { Authorization: `Bearer ${config.token}`, "Content-Type": "application/json" },
    body: JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: tool, arguments: args } }),
  });
  const { result, error } = await response.json();
  assert.ok(result && !result.isError, JSON.stringify(error ?? result));
  return JSON.parse(result.content[0].text);
}
