// Stories about what goes with runs (services, variables, the key), and about servers and tabs that are not as usual.
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { call, config, Visitor } from "./harness.mjs";

const stored = (page) => page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]));

export const settings = {
  async "a service is chosen, and code calls it"(browser) {
    const v = await Visitor.arrive(browser, { axe: true });
    await v.open("services");
    const example = async () => {
      await v.at("examples-open").click();
      await v.page.locator("[data-testid=example-item][data-example=api]").click();
      return v.at("editor").locator(".cm-content").innerText();
    };
    await v.at("settings-open").click();
    const service = (name) => v.page.locator(`[data-testid=service][data-service=${name}]`);
    await service("datadog").getByText("Not connected").waitFor();
    assert.match(await service("datadog").getByRole("link", { name: "Connect Datadog" }).getAttribute("href"), /\/connections#datadog$/);
    assert.equal(await service("datadog").getByRole("switch").count(), 0, "what is not connected cannot be chosen");
    await service("status-page").getByRole("switch").setChecked(true, { force: true });
    await v.accessible("services");
    await v.screenshot("services");
    await v.at("settings-close").click();
    for (const [language, path] of [["python", 'path = "/"'], ["typescript", 'const path = "/"'], ["shell", "path=/ "]]) {
      await v.at("language-select").selectOption(language);
      const code = await example();
      assert.ok(code.includes(path), code);
      await v.paste(code.replace(path, path.replace("/", "/api/v1/status")));
      await v.at("run").click();
      const output = await v.ended("ok");
      assert.match(output, /200/);
      assert.match(output, /"account":"operator"/);
    }
    await v.at("settings-open").click();
    assert.equal(await v.at("network-switch").isChecked(), false, "it needs no network");
    await service("status-page").getByRole("switch").setChecked(false, { force: true });
    await v.at("settings-close").click();
    assert.match(await v.runToEnd("shell", 'echo "[$PROXY_URL]"'), /\[\]/);
    await v.leave();
  },

  async "a service that is gone is not asked for"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("gone");
    await v.page.evaluate(() => sessionStorage.setItem("sandbox:settings", JSON.stringify({ services: ["datadog", "gone"] })));
    await v.page.reload();
    await v.page.waitForFunction(() => JSON.parse(sessionStorage.getItem("sandbox:settings")).services.length === 0);
    assert.match(await v.runToEnd("shell", "echo runs"), /runs/);
    await v.leave();
  },

  async "the call of an API says what it needs"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("api");
    await v.at("language-select").selectOption("shell");
    await v.at("examples-open").click();
    const item = v.page.locator("[data-testid=example-item][data-example=api]");
    assert.match(await item.innerText(), /network access on/);
    await item.click();
    await v.at("settings-open").click();
    assert.equal(await v.at("network-switch").isChecked(), true, "the example has turned it on");
    await v.at("network-switch").setChecked(false, { force: true });
    await v.at("settings-close").click();
    for (const language of ["python", "javascript", "typescript", "shell"]) {
      await v.at("language-select").selectOption(language);
      await v.at("examples-open").click();
      await item.click();
      await v.at("settings-open").click();
      await v.at("network-switch").setChecked(false, { force: true }); // tests stay on this machine
      await v.at("settings-close").click();
      await v.at("run").click();
      assert.match(await v.ended("failed"), /Is network access on/);
    }
    await v.leave();
  },

  async "variables of the environment, also where variables are kept"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("environment");
    await v.at("settings-open").click();
    for (const [name, value] of [["GREETING", "hallo"], ["QUOTED", `a "b" 'c' $d`]]) {
      await v.at("env-add").click();
      await v.at("env-name").last().fill(name);
      await v.at("env-value").last().fill(value);
    }
    await v.at("settings-close").click();
    const code = 'import os\nprint(os.environ.get("GREETING"), os.environ.get("QUOTED"))';
    for (const keep of [true, false]) assert.match(await v.runToEnd("python", code, { keep }), /hallo a "b" 'c' \$d/);
    await v.at("settings-open").click();
    await v.at("env-remove").first().click();
    await v.at("settings-close").click();
    assert.match(await v.runToEnd("python", code, { keep: true }), /None a "b"/, "a variable goes with the runs, not with the interpreter");
    assert.ok(!(await v.page.evaluate(() => JSON.stringify(localStorage))).includes("hallo"), "it stays in the tab");
    await v.leave();
  },

  async "a key that is remembered, and forgotten"(browser) {
    const v = await Visitor.arrive(browser);
    v.tolerate(/status of 401/);
    await v.page.goto(config.url);
    await v.at("key-input").fill(config.token);
    await v.at("key-remember").check();
    await v.at("key-save").click();
    await v.at("key-dialog").waitFor({ state: "detached" });
    const heard = (page) => page.getByTestId("language-select").locator("option[value=shell]").waitFor({ state: "attached" });
    const second = await v.newTab();
    await second.goto(config.url);
    await heard(second);
    const third = await v.newTab(); // with an old link
    await third.goto(`${config.url}/#token=outdated`);
    await heard(third);
    assert.ok(!(await third.getByTestId("key-dialog").isVisible()), "the key of the device is still good");
    await v.at("settings-open").click();
    await v.at("settings-drawer").getByText("Remembered on this device").waitFor();
    await v.at("key-forget").click();
    await v.at("key-dialog").waitFor();
    for (const page of [v.page, second, third]) assert.ok(!(await stored(page)).includes(config.token), "it is forgotten in every tab");
    await v.page.reload();
    await v.at("key-dialog").waitFor();
    await v.leave();
  },

  async "the key is nowhere but in the tab"(browser) {
    const v = await Visitor.arrive(browser);
    const requests = [];
    v.context.on("request", (r) => requests.push(r));
    await v.page.goto("about:blank");
    await v.open("secret");
    await v.at("settings-open").click();
    await v.at("settings-close").click();
    await v.runToEnd("shell", "echo x > x.txt");
    await v.download("x.txt");
    const inPage = await v.page.evaluate(() => [document.documentElement.outerHTML, document.referrer, location.href, JSON.stringify(history.state), JSON.stringify(localStorage), document.cookie, name].join());
    assert.ok(!inPage.includes(config.token));
    for (const r of requests) {
      const headers = await r.allHeaders();
      assert.equal(headers.referer, undefined, "no request says where it comes from");
      const { authorization, ...others } = headers;
      assert.ok(!(r.url() + JSON.stringify(others) + (r.postData() ?? "")).includes(config.token) || r.isNavigationRequest(), r.url());
      if (!new URL(r.url()).pathname.startsWith("/mcp")) assert.equal(authorization, undefined, r.url());
    }
    await v.page.goBack();
    assert.equal(v.page.url(), "about:blank", "one entry in the history, and not two");
    await v.page.goForward();
    assert.equal(v.page.url(), `${config.url}/`);
    await v.leave();
  },

  async "files are dropped onto the page"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("drop");
    const dir = mkdtempSync(join(tmpdir(), "drop-"));
    try {
      writeFileSync(join(dir, "dropped.csv"), "a,b\n1,2\n");
      mkdirSync(join(dir, "folder"));
      const before = await v.at("editor").locator(".cm-content").innerText();
      const { x, y } = await v.at("editor").boundingBox(); // which would take the text of a file for code
      const cdp = await v.context.newCDPSession(v.page);
      const drag = (type, ...names) => cdp.send("Input.dispatchDragEvent", { type, x: x + 80, y: y + 80, data: { items: [], files: names.map((name) => join(dir, name)), dragOperationsMask: 1 } });
      await drag("dragEnter", "dropped.csv");
      await v.page.getByText("Drop to upload").waitFor();
      await drag("dragOver", "dropped.csv");
      await drag("drop", "dropped.csv");
      await v.row("dropped.csv").waitFor();
      await v.page.getByText("Drop to upload").waitFor({ state: "hidden" });
      assert.equal(await v.at("editor").locator(".cm-content").innerText(), before);
      assert.equal((await v.download("dropped.csv")).toString(), "a,b\n1,2\n");
      for (const type of ["dragEnter", "dragOver", "drop"]) await drag(type, "folder");
      await v.at("banner").getByText("Folders cannot be uploaded").waitFor();
      assert.equal(await v.at("file-row").count(), 1);
    } finally {
      rmSync(dir, { recursive: true });
    }
    await v.leave();
  },

  async "a server with few tools"(browser) {
    const v = await Visitor.arrive(browser, { server: config.narrow });
    await v.open("narrow");
    await v.at("files").getByText("does not list files").waitFor();
    await v.at("upload-input").waitFor({ state: "hidden" });
    assert.equal(await v.at("persist-switch").isDisabled(), true, "there is no tool that keeps variables");
    assert.match(await v.runToEnd("shell", "echo narrow; echo x > /data/x"), /narrow/);
    await v.at("session-menu").click();
    await v.page.locator("[data-testid=session-item][data-session=narrow]").waitFor(); // of this browser's own list
    await v.page.keyboard.press("Escape");
    await v.run("shell", "echo on; sleep 60");
    await v.sees("on");
    await v.at("stop").click(); // without cancel_run
    await v.ended("stopped");
    assert.ok(!(await v.at("banner").isVisible()), "nothing has been asked that the server does not have");
    await v.leave();
  },

  async "a server that runs nothing"(browser) {
    const v = await Visitor.arrive(browser);
    await v.page.route("**/mcp", (route) => route.fulfill({ json: { jsonrpc: "2.0", id: JSON.parse(route.request().postData()).id, result: { tools: [{ name: "wait_run", inputSchema: {} }] } } }));
    await v.page.goto(`${config.url}/#token=${config.token}`);
    await v.at("banner").getByText("SANDBOX_TOOLS").waitFor();
    assert.equal(await v.at("run").isDisabled(), true);
    await v.leave();
  },

  async "a server that tells no details"(browser) {
    const v = await Visitor.arrive(browser);
    // Something between the page and the server that passes on neither what is asked for in _meta nor progress.
    await v.page.route("**/mcp", async (route) => {
      if (route.request().method() !== "POST") return route.continue();
      const message = JSON.parse(route.request().postData());
      delete message.params?._meta;
      const response = await route.fetch({ postData: JSON.stringify(message) });
      await route.fulfill({ response });
    });
    await v.open("plain");
    for (const keep of [true, false]) {
      assert.match(await v.runToEnd("python", `print("plain ${keep}")`, { keep }), new RegExp(`plain ${keep}`));
      assert.match(await v.runToEnd("python", `print("before")\n1 / 0`, { keep, state: keep ? "ok" : "failed" }), /before[^]*ZeroDivisionError/);
    }
    assert.equal(await v.at("status").getAttribute("data-exit-code"), "1");
    await v.runToEnd("python", "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()", { keep: true });
    await v.at("output-image").waitFor();
    await v.leave();
  },

  async "a tab that comes back into view"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("hidden");
    const look = (hidden) =>
      v.page.evaluate((value) => {
        Object.defineProperty(document, "hidden", { value, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
      }, hidden);
    const stream = (r) => r.method() === "GET" && r.url().endsWith("/mcp");
    const gone = v.page.waitForEvent("requestfailed", stream); // ended by the page
    await look(true);
    await gone;
    await call("upload_file", { session_id: "hidden", filename: "meanwhile.txt", content: "aGk=" });
    const again = v.page.waitForRequest(stream);
    await look(false);
    await v.row("meanwhile.txt").waitFor();
    await again; // it listens
    assert.ok(!(await v.at("banner").isVisible()));
    await v.leave();
  },
};
