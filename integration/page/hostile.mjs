// What code in the sandbox may try on the page that shows its output. Every story ends without a script of its having run, without a
// request, a window or a dialog, and without the policy having had to stop anything: the page never offered it.
import assert from "node:assert/strict";
import http from "node:http";
import { call, config, Visitor } from "./harness.mjs";

const attack = (n) => `<script>globalThis.pwned=${n}</script><img src=x onerror="globalThis.pwned=${n}"><iframe srcdoc="<script>top.pwned=${n}</script>"></iframe><svg onload="globalThis.pwned=${n}"><a href="javascript:globalThis.pwned=${n}">x</a>` +
  `<link rel=stylesheet href="//attacker.example/x.css"><style>*{background:url(//attacker.example/x.png)}</style><b style="color:red;background:url(//attacker.example/y.png)">bold</b><form action="//attacker.example"><button id=go>go</button></form><meta http-equiv=refresh content="0;url=//attacker.example/"><base href="//attacker.example/">`;

async function unharmed(v) {
  assert.equal(await v.page.evaluate(() => globalThis.pwned), undefined, "a script of the sandbox's has run in the page");
  for (const frame of v.page.frames()) {
    if (frame !== v.page.mainFrame()) assert.equal(await frame.evaluate(() => globalThis.pwned).catch(() => undefined), undefined, "a script has run in a frame");
  }
}

export const hostile = {
  async "hostile output"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("hostile");
    const code = `import sys\nprint(${JSON.stringify(attack(1))})\nprint(${JSON.stringify(attack(2))}, file=sys.stderr)\nprint("\\x1b]8;;javascript:globalThis.pwned=3\\x07link\\x1b]8;;\\x07 \\x1b]0;title\\x07\\x1b[999999;1;38;5;999;48;2;1mx\\x1b[0m\\x00\\x9b31m\\u202eabc")`;
    for (const keep of [false, true]) {
      const output = await v.runToEnd("python", code, { keep });
      assert.ok(output.includes("<script>globalThis.pwned=1</script>") && output.includes("pwned=2"), "it is shown as the text it is");
      await unharmed(v);
    }
    await v.leave();
  },

  async "hostile HTML shown by code"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("hostile-html");
    const shown = (html) => v.runToEnd("python", `class H:\n    def _repr_html_(self): return ${JSON.stringify(html)}\n    def __repr__(self): return "H"\nH()`, { keep: true });
    // What is a table alone becomes one of the page's own, of text.
    await shown(`<table><tr><td>plain <b onclick="globalThis.pwned=4">bold</b>${attack(4)}</td></tr></table>`);
    await v.at("output-table").getByRole("cell", { name: "plain bold" }).waitFor();
    assert.equal(await v.page.locator("[data-testid=output-table] td *, [data-testid=output-html]").count(), 0, "nothing but text is in a cell");
    await unharmed(v);
    await shown(`<h3>title</h3><table><tr><td>cell</td></tr></table>${attack(4)}`);
    const frame = v.at("output-html");
    await frame.waitFor();
    const sandbox = await frame.getAttribute("sandbox");
    assert.ok(sandbox !== null && !/allow-(scripts|same-origin|top|popups|forms)/.test(sandbox), `sandbox=${sandbox}`);
    await v.page.frameLocator("[data-testid=output-html]").getByText("cell").waitFor();
    await unharmed(v);
    await v.leave();
  },

  async "hostile SVG shown by code"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("hostile-svg");
    const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="60" height="60" onload="globalThis.pwned=5"><script>globalThis.pwned=5</script><image href="http://attacker.example/x.png"/><circle r="20" cx="30" cy="30"/></svg>`;
    await v.runToEnd("python", `class S:\n    def _repr_svg_(self): return ${JSON.stringify(svg)}\nS()`, { keep: true });
    await v.at("output-image").waitFor();
    await unharmed(v);
    await v.leave();
  },

  async "hostile files"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("hostile-files");
    const names = [`<img src=x onerror=globalThis.pwned=6>.csv`, `"onmouseover="globalThis.pwned=7.svg`, `javascript:globalThis.pwned=8.txt`, `a.html`, `a.js`, `bill\u202efdp.exe`, `wide.csv`];
    const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="60" height="60" onload="globalThis.pwned=9"><script>globalThis.pwned=9</script><foreignObject><body xmlns="http://www.w3.org/1999/xhtml"><script>globalThis.pwned=9</script></body></foreignObject><circle r="20" cx="30" cy="30"/></svg>`;
    const contents = [`name,${attack(10)}\n"${attack(11).replaceAll('"', '""')}",=cmd()\n`, svg, attack(12), attack(13), "globalThis.pwned=14", "MZ", ","];
    await v.runToEnd("python", `import json\nfor name, content in zip(json.loads(${JSON.stringify(JSON.stringify(names))}), json.loads(${JSON.stringify(JSON.stringify(contents))})):\n    open(name, "w").write(content * (300_000 if name == "wide.csv" else 1))`);
    for (const name of names) {
      await v.row(name).waitFor();
      await v.row(name).hover();
      await v.row(name).getByTestId("file-preview").click();
      await v.at("preview-body").filter({ hasNotText: "Loading" }).waitFor();
      await unharmed(v);
      await v.at("preview-close").click();
      await v.at("preview-dialog").waitFor({ state: "detached" });
    }
    assert.match(await v.row(names[5]).innerText(), /bill\ufffdfdp\.exe/, "a name is read in the order it is written");
    assert.equal((await v.download(names[4])).toString(), "globalThis.pwned=14");
    // A file is of the page's origin; still the page cannot be made to load it as a script.
    const { artifacts } = await call("list_artifacts", { session_id: "hostile-files" });
    const link = new URL(artifacts.find((a) => a.filename === "a.js").download_url);
    v.tolerate(/Content Security Policy|script-src/);
    const outcome = await v.page.evaluate(
      (src) =>
        new Promise((resolve) => {
          const script = document.createElement("script");
          script.src = src;
          script.onload = () => resolve("loaded");
          script.onerror = () => resolve("refused");
          document.head.append(script);
        }),
      link.pathname + link.search,
    );
    assert.equal(outcome, "refused");
    await unharmed(v);
    await v.leave();
  },

  async "answers that make no sense"(browser) {
    const v = await Visitor.arrive(browser);
    let result = {}; // of every call
    const send = (route) => {
      const { id } = JSON.parse(route.request().postData());
      if (typeof result === "function") return route.fulfill(result(id));
      return route.fulfill({ json: { jsonrpc: "2.0", id, ...result } });
    };
    await v.page.route("**/mcp", send);
    const events = (...messages) => ({ contentType: "text/event-stream", body: messages.map((m) => `data: ${typeof m === "string" ? m : JSON.stringify(m)}\n\n`).join("") });
    const progress = (params) => ({ jsonrpc: "2.0", method: "notifications/progress", params });
    const tools = ["run", "run_code", "list_runners", "list_artifacts", "list_sessions", "list_services", "upload_file", "delete_file"].map((name) => ({ name, inputSchema: { properties: { environment: {}, services: {} } } }));
    const results = [
      { result: null }, { result: [] }, { result: "x" }, { result: {} }, {}, { error: "x" }, { error: { message: { a: 1 } } }, { result: { isError: true } },
      { result: { tools: [null, 1, { name: 5 }, { name: "run", inputSchema: null }, { name: "__proto__", inputSchema: { properties: { constructor: null } } }], content: [null, 5, { type: "text" }, { type: "image", mimeType: 4 }], structuredContent: 5, _meta: [] } },
      { result: { tools, content: [{ type: "text", text: "{}" }], structuredContent: { languages: {}, artifacts: "x", sessions: 4, services: null, upload_url: 5 }, _meta: { "mcp-code-sandbox/run": { exit_code: "0", displays: {} } } } },
      () => ({ contentType: "text/html", body: "<h1>log in first</h1>" }),
      () => events("null", "[]", "nonsense", progress(null), progress({ message: 5, _meta: [] })),
      (id) => events(progress({ message: "ab", _meta: { "mcp-code-sandbox/stderr": [null, [1], ["x", {}], [-5, 1e9], [2, 1]], "mcp-code-sandbox/run_id": {} } }), { id, result: { tools, _meta: { "mcp-code-sandbox/run": { exit_code: 0, stdout: 5, displays: [null, { mime_type: 4, text: [] }, { mime_type: "text/html" }] } } } }),
      { result: { tools, content: [{ type: "image", mimeType: "image/png", data: "eA==" }], _meta: { "mcp-code-sandbox/run": { exit_code: 0, displays: [{ mime_type: "text/markdown", text: 5 }], output_url: [], outputs: [null, 5, {}, { type: "stdout", text: 5, omitted_bytes: -1 }, { type: "stderr", omitted_bytes: "x" }, { type: "display", index: 0 }, { type: "display", index: -1 }, { type: "image", index: 0.5 }, { type: "image", index: 9, file: {}, url: 7 }, { type: "image", index: 0 }] } } } },
    ];
    await v.page.goto(`${config.url}/#token=${config.token}`);
    for (const answer of results) {
      result = answer;
      await v.page.reload();
      await v.page.locator("html[data-ready=true]").waitFor();
      await v.at("session-menu").click();
      if (JSON.stringify(answer)?.includes("list_services")) {
        await v.at("settings-open").click();
        await v.at("settings-close").click();
      }
      // At once: an answer may disable the button between a question and a click.
      const clicked = await v.at("run").evaluate((button) => !button.disabled && (button.click(), true));
      if (clicked) {
        await v.page.waitForFunction(() => !["idle", "running"].includes(document.querySelector("[data-testid=status]").dataset.state) || document.querySelector("[data-testid=run]").disabled);
      }
      await unharmed(v);
    }
    await v.leave(); // without a script error
  },

  async "answers that mean harm"(browser) {
    const v = await Visitor.arrive(browser);
    const evil = ["constructor", "__proto__", "toString", attack(20)];
    const links = ["javascript:globalThis.pwned=21", "//attacker.example/x", "http://h//attacker.example/x", "http://h/\\\\attacker.example/x", "data:text/html,x", "http://[", "/../files/../x"];
    const lists = {
      list_runners: { languages: evil.map((language) => ({ language, version: attack(22), title: attack(22), libraries: evil })) },
      list_artifacts: { artifacts: [...evil.map((path) => ({ path: `/mnt/data/${path}`, size_bytes: -1, mime_type: "image/png", modified_at: "never" })), ...links.map((download_url, i) => ({ path: `/mnt/data/${i}.txt`, size_bytes: 1, mime_type: "text/plain", download_url }))] },
      list_sessions: { sessions: [...evil, "../../etc", "a b", "~x", "x\u202ey"].map((session_id) => ({ session_id, last_used: "x", files: "many", bytes: {}, live: "yes" })) },
      list_services: { services: [...evil.map((name) => ({ name, display_name: attack(23), connected: true })), ...links.map((connect_url, i) => ({ name: `s${i}`, connected: false, connect_url }))] },
    };
    await v.page.route("**/mcp", (route) => {
      const { id, method, params } = JSON.parse(route.request().postData());
      const tools = Object.keys(lists).concat("run", "run_code", "delete_file").map((name) => ({ name, inputSchema: { properties: {} } }));
      const structuredContent = lists[params.name] ?? {};
      const outputs = [
        { type: "stdout", text: attack(25) }, { type: "display", index: 0 }, { type: "display", index: 1 }, { type: "display", index: 2 }, { type: "stdout", omitted_bytes: 7 },
        ...links.map((url) => ({ type: "image", file: attack(25), url })),
      ];
      const run = { outputs, output_url: links[0], exit_code: 1, cause: "constructor", hint: attack(24), state: attack(24), stdout: attack(24), displays: [{ mime_type: "text/html", text: `<a${"<a".repeat(100_000)}` }, { mime_type: "text/markdown", text: `|${"a|".repeat(50_000)}\n|${"---|".repeat(50_000)}\n|${"b|".repeat(50_000)}` }, { mime_type: "text/markdown", text: `# ${attack(26)}\n[x](javascript:globalThis.pwned=26) ![x](//attacker.example/x.png)\n> ${attack(26)}` }] };
      return route.fulfill({ json: { jsonrpc: "2.0", id, result: method === "tools/list" ? { tools } : { content: [{ type: "text", text: JSON.stringify(structuredContent) }], structuredContent, _meta: { "mcp-code-sandbox/run": run } } } });
    });
    await v.page.goto(`${config.url}/#token=${config.token}`);
    await v.at("language-select").locator("option[value=toString]").waitFor({ state: "attached" });
    await v.row("0.txt").waitFor();
    for (const language of evil) {
      await v.at("language-select").selectOption(language);
      await v.at("examples-open").click();
      await v.page.keyboard.press("Escape");
    }
    assert.deepEqual(await v.page.getByTestId("file-download").evaluateAll((all) => all.map((a) => a.href)), [], "a link that is none of a file's is not offered");
    for (const name of ["constructor", "1.txt"]) {
      await v.row(name).getByTestId("file-preview").click();
      await v.at("preview-body").getByText("no link").waitFor();
      await v.at("preview-close").click();
    }
    await v.at("session-menu").click();
    await v.page.locator("[data-testid=session-item][data-session=constructor]").waitFor();
    const ids = await v.at("session-item").evaluateAll((all) => all.map((item) => item.dataset.session));
    assert.ok(!ids.some((id) => /[\s/~\u202e]/.test(id)), `${ids}`);
    await v.page.locator("[data-testid=session-item][data-session=__proto__]").click();
    await v.at("settings-open").click();
    await v.at("service").first().waitFor();
    const offered = await v.at("services").locator("a").evaluateAll((all) => all.map((a) => [a.protocol, a.rel, a.target].join()));
    assert.ok(offered.every((a) => a === "http:,noopener,_blank"), `${offered}`);
    await v.at("settings-close").click();
    await v.paste("x");
    await v.at("run").click();
    await v.ended("failed");
    await unharmed(v);
    assert.equal(await v.at("output").locator("a, img").count(), 0, "a link that is none of a file's");
    assert.equal(await v.at("output").getByText("The code showed an image here").count(), links.length);
    await v.leave();
  },

  async "another site"(browser) {
    const v = await Visitor.arrive(browser);
    const site = http.createServer((request, response) => {
      response.setHeader("Content-Type", "text/html");
      response.end(`<title>site</title><iframe name=framed src="${config.url}/"></iframe>`);
    });
    await new Promise((resolve) => site.listen(0, "127.0.0.1", resolve));
    const origin = `http://127.0.0.1:${site.address().port}`;
    try {
      // The person has a key here, which the device remembers.
      await v.page.goto(config.url);
      await v.at("key-input").fill(config.token);
      await v.at("key-remember").check();
      await v.at("key-save").click();
      await v.at("key-dialog").waitFor({ state: "detached" });
      v.tolerate(new RegExp(`request to another origin: ${origin}`), /^window/, /console error: (Access to fetch|Failed to load|Refused to (display|frame|load)|Framing|Loading|.*(CORS|X-Frame-Options|frame-ancestors|ERR_BLOCKED|ERR_FAILED))/);
      const elsewhere = await v.newTab();
      const refused = elsewhere.waitForEvent("requestfailed", (r) => r.frame() !== elsewhere.mainFrame());
      await elsewhere.goto(origin);
      assert.match((await refused).failure().errorText, /BLOCKED/, "the page is not to be had in a frame");
      const opened = v.context.waitForEvent("page");
      const tried = await elsewhere.evaluate(async (url) => {
        const attempt = async (options) => fetch(`${url}/mcp`, options).then((r) => `${r.type} ${r.status}`, (e) => e.name);
        const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/list", params: {} });
        open(`${url}/`);
        return [await attempt({ method: "POST", body }), await attempt({ method: "POST", body, credentials: "include", headers: { "Content-Type": "application/json", Authorization: "Bearer x" } }), await attempt({ method: "POST", body, mode: "no-cors" })];
      }, config.url);
      assert.deepEqual(tried.slice(0, 2), ["TypeError", "TypeError"]);
      assert.match(tried[2], /^(opaque 0|TypeError)$/);
      const popup = await opened;
      await popup.getByTestId("language-select").locator("option[value=shell]").waitFor({ state: "attached" });
      assert.equal(await popup.evaluate(() => opener), null, "a page that was opened has nothing to do with who opened it");
      const before = await popup.evaluate(() => document.documentElement.outerHTML.replaceAll(/just now|\d+ s ago/g, ""));
      // Even of its own window it takes no messages.
      await popup.evaluate((key) => {
        for (const data of [{ token: "evil" }, { type: "run", code: "1" }, JSON.stringify({ key }), { jsonrpc: "2.0", method: "tools/call" }]) postMessage(data, "*");
        return new Promise((resolve) => setTimeout(resolve));
      }, "evil");
      assert.equal(await popup.evaluate(() => document.documentElement.outerHTML.replaceAll(/just now|\d+ s ago/g, "")), before);
      assert.equal(await popup.evaluate(() => localStorage.getItem("sandbox:key")), JSON.stringify(config.token));
    } finally {
      site.closeAllConnections();
      site.close();
    }
    await v.leave();
  },
};
