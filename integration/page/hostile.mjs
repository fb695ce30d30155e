// What code in the sandbox may try on the page that shows its output. Every story ends without a script of its having run, without a
// request, a window or a dialog, and without the policy having had to stop anything: the page never offered it.
import assert from "node:assert/strict";
import { call, Visitor } from "./harness.mjs";

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
    const html = `<table><tr><td>cell</td></tr></table>${attack(4)}`;
    await v.runToEnd("python", `class H:\n    def _repr_html_(self): return ${JSON.stringify(html)}\n    def __repr__(self): return "H"\nH()`, { keep: true });
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
    const names = [`<img src=x onerror=globalThis.pwned=6>.csv`, `"onmouseover="globalThis.pwned=7.svg`, `javascript:globalThis.pwned=8.txt`, `a.html`, `a.js`];
    const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="60" height="60" onload="globalThis.pwned=9"><script>globalThis.pwned=9</script><foreignObject><body xmlns="http://www.w3.org/1999/xhtml"><script>globalThis.pwned=9</script></body></foreignObject><circle r="20" cx="30" cy="30"/></svg>`;
    const contents = [`name,${attack(10)}\n"${attack(11).replaceAll('"', '""')}",=cmd()\n`, svg, attack(12), attack(13), "globalThis.pwned=14"];
    await v.runToEnd("python", `import json\nfor name, content in zip(json.loads(${JSON.stringify(JSON.stringify(names))}), json.loads(${JSON.stringify(JSON.stringify(contents))})):\n    open(name, "w").write(content)`);
    for (const name of names) {
      await v.row(name).waitFor();
      await v.row(name).hover();
      await v.row(name).getByTestId("file-preview").click();
      await v.at("preview-body").filter({ hasNotText: "Loading" }).waitFor();
      await unharmed(v);
      await v.at("preview-close").click();
      await v.at("preview-dialog").waitFor({ state: "detached" });
    }
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
};
