// Stories about people's work: no run, no output and no code is lost, whatever happens to the page, the connection or other tabs.
import assert from "node:assert/strict";
import net from "node:net";
import { call, config, Visitor } from "./harness.mjs";

/** Code that prints its first words, waits for the file "go", and prints more. */
export const waiting = (first, last) => `import os, sys, time\nprint("${first}", flush=True)\nprint("oops", file=sys.stderr, flush=True)\nwhile not os.path.exists("/data/go"): time.sleep(0.02)\nprint("${last}")`;
export const go = (session_id) => call("upload_file", { session_id, filename: "go", content: "Z28=" });

export const code = (page) => page.getByTestId("editor").locator(".cm-content").innerText();
export const arrived = (page) => page.getByTestId("language-select").locator("option[value=shell]").waitFor({ state: "attached" });

/** A way to the server that can be cut. */
async function cuttable() {
  const { hostname, port } = new URL(config.url);
  const open = new Set();
  let cut = false;
  const server = net.createServer((near) => {
    if (cut) return near.destroy();
    const far = net.connect(Number(port), hostname);
    for (const [from, to] of [[near, far], [far, near]]) {
      open.add(from);
      from.on("error", () => {}).on("close", () => (open.delete(from), to.destroy()));
      from.pipe(to);
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    cut() {
      cut = true;
      for (const socket of open) socket.destroy();
    },
    mend: () => (cut = false),
    close() {
      this.cut();
      server.close();
    },
  };
}

export const work = {
  async "a reload in the middle of a run"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("reload");
    for (const keep of [true, false]) {
      await v.run("python", waiting("before", "after"), { keep });
      await v.sees("before");
      await v.page.reload();
      await v.sees("before"); // found again, with all its output
      assert.equal(await v.at("status").getAttribute("data-state"), "running");
      await v.page.locator("[data-testid=output] [data-stream=stderr]", { hasText: "oops" }).waitFor();
      await v.at("stop").waitFor();
      await go("reload");
      assert.match(await v.ended("ok"), /before[^]*after/);
      await v.at("history-item").first().and(v.page.locator("[data-outcome=ok]")).waitFor();
      await call("delete_file", { session_id: "reload", filename: "go" });
    }
    // Also the output of runs that ended long before the page was loaded.
    await v.page.reload();
    await arrived(v.page);
    await v.at("history-item").first().locator(".row-main").click();
    assert.match(await v.ended("ok"), /before[^]*after/);
    // A run that goes on can be stopped by the page that found it.
    await v.run("python", waiting("once more", "never"));
    await v.sees("once more");
    await v.page.reload();
    await v.sees("once more");
    await v.at("stop").click();
    await v.ended("stopped");
    await v.leave();
  },

  async "a result that is gone"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("gone-result");
    await v.runToEnd("shell", "echo here");
    await v.page.evaluate(() => {
      for (const key of Object.keys(localStorage).filter((k) => k.startsWith("sandbox:cell/gone-result/"))) {
        localStorage.setItem(key, JSON.stringify({ ...JSON.parse(localStorage.getItem(key)), runId: "run_00000000000000", outcome: "running" }));
      }
    });
    await v.page.reload();
    await v.at("output").getByText("no longer has the result").waitFor();
    await v.page.locator("[data-testid=history-item][data-outcome=lost]").waitFor();
    // One that the server never began.
    await v.page.evaluate(() => {
      const cell = { id: "never", runId: "", language: "shell", code: "echo never", foreign: false, keep: false, at: Date.now(), outcome: "running", duration: 0 };
      localStorage.setItem("sandbox:cell/gone-result/never", JSON.stringify(cell));
    });
    await v.page.reload();
    await v.at("output").getByText("does not know this run").waitFor();
    assert.ok(await v.at("run").isVisible(), "the next run can be started");
    await v.leave();
  },

  async "a connection that drops in the middle of a run"(browser) {
    const way = await cuttable();
    try {
      const v = await Visitor.arrive(browser, { server: way.url });
      v.tolerate(/ERR_CONNECTION|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_EMPTY_RESPONSE|ERR_SOCKET/);
      await v.open("dropped");
      await v.run("python", waiting("before", "after"));
      await v.sees("before");
      way.cut();
      await v.page.locator("[data-testid=banner][data-kind=offline]").waitFor();
      await go("dropped"); // the code ends while nobody is there
      way.mend();
      assert.match(await v.ended("ok"), /before[^]*after/);
      await v.at("history-item").first().and(v.page.locator("[data-outcome=ok]")).waitFor();
      // A connection that drops before the server has said what the run is called.
      let held;
      await v.page.route("**/mcp", async (route) => {
        if (held || !route.request().postData()?.includes('"background":true')) return route.continue();
        held = true;
        await route.fetch(); // the server begins
        way.cut();
        await route.abort("connectionreset");
        way.mend();
      });
      await v.runToEnd("shell", "echo found again");
      assert.ok(held);
      assert.match(await v.output(), /found again/);
      assert.equal(await v.at("history-item").count(), 2);
      await v.leave();
    } finally {
      way.close();
    }
  },

  async "code in the editor is never lost"(browser) {
    const v = await Visitor.arrive(browser, { axe: true });
    await v.open("draft-1");
    await v.runToEnd("shell", "echo ran before");
    await v.write("shell", "echo precious");
    await v.at("examples-open").click();
    await v.page.locator("[data-testid=example-item]").first().click();
    assert.ok(!(await code(v.page)).includes("precious"));
    await v.at("toast").waitFor();
    await v.accessible("a way back");
    await v.screenshot("toast");
    await v.at("toast-action").click();
    assert.match(await code(v.page), /^echo precious$/);
    await v.at("history-edit").click();
    assert.match(await code(v.page), /ran before/);
    await v.at("editor").locator(".cm-content").press("ControlOrMeta+z");
    assert.match(await code(v.page), /^echo precious$/);
    // Each conversation has its draft and its language.
    await v.at("session-new").click();
    await v.write("python", "print('other')");
    await v.at("session-menu").click();
    await v.page.locator("[data-testid=session-item][data-session=draft-1]").click();
    await v.page.waitForFunction(() => document.querySelector("[data-testid=editor] .cm-content").innerText === "echo precious");
    assert.equal(await v.at("language-select").inputValue(), "shell");
    await v.at("editor").locator(".cm-content").press("ControlOrMeta+z"); // with its past
    assert.notEqual(await code(v.page), "echo precious");
    await v.leave();
  },

  async "two tabs of one conversation"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("tabs");
    await v.write("shell", "echo from the first");
    const second = await v.newTab();
    await second.goto(`${config.url}/#token=${config.token}`);
    await arrived(second);
    await v.converse("tabs", second);
    const other = Object.assign(Object.create(v), { page: second });
    await other.write("shell", "echo from the second");
    await Promise.all([v, other].map((tab) => tab.at("run").click()));
    await v.ended("ok");
    await other.ended("ok");
    for (const tab of [v, other]) {
      await tab.at("history-item").nth(1).waitFor();
      await tab.page.waitForFunction(() => document.querySelectorAll("[data-testid=history-item][data-outcome=ok]").length === 2);
      assert.equal(await tab.page.locator("[data-foreign]").count(), 0, "a run of the other tab is no other client's");
    }
    for (const [tab, want] of [[v, /from the first/], [other, /from the second/]]) {
      await tab.page.reload();
      await arrived(tab.page);
      assert.match(await code(tab.page), want, "each tab has its own draft");
      assert.equal(await tab.at("history-item").count(), 2);
    }
    // What a closed tab wrote is offered to the next one.
    await second.close();
    const third = await v.newTab();
    await third.goto(`${config.url}/#token=${config.token}`);
    await arrived(third);
    await v.converse("tabs", third);
    const both = new Set([await code(third)]);
    await third.getByTestId("toast-action").click();
    both.add(await code(third));
    assert.deepEqual([...both].sort(), ["echo from the first", "echo from the second"]);
    await v.leave();
  },

  async "five megabytes of output"(browser) {
    const v = await Visitor.arrive(browser, { permissions: ["clipboard-read", "clipboard-write"] });
    await v.open("much");
    const total = 5_000_000;
    await v.runToEnd("python", `for i in range(${total / 50}): print(f"{i:049d}")`);
    const output = await v.output();
    await v.at("output-copy").click();
    const shown = await v.page.evaluate(async () => {
      while (!document.querySelector("[data-testid=output-copy][data-copied]")) await new Promise(requestAnimationFrame);
      return navigator.clipboard.readText();
    });
    const gaps = [...shown.matchAll(/… ([\d,]+) bytes of output are left out here …\n?/g)];
    const missed = gaps.reduce((n, [, bytes]) => n + Number(bytes.replaceAll(",", "")), 0);
    const kept = gaps.reduce((text, [gap]) => text.replace(gap, ""), shown);
    // A cut may be in the middle of a line, which then ends there.
    assert.ok(Math.abs(kept.length + missed - total) <= gaps.length + 1, `${kept.length} bytes are shown, ${missed} are said to be missing, of ${total}`);
    assert.equal(/are left out above[^]*\/data/.test(output), missed > 0, output.slice(-300));
    assert.ok(!/too slowly/.test(shown));
    // What is shown in full is not said to be more.
    await v.runToEnd("python", 'for i in range(5000): print(f"{i:049d}")');
    assert.ok(!/left out|more/.test((await v.output()).slice(-400)), (await v.output()).slice(-400));
    await v.leave();
  },

  async "a run belongs to its conversation"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("mine-1");
    await v.run("python", waiting("of the first", "done with the first"));
    await v.sees("of the first");
    await v.at("session-new").click();
    await v.at("output").getByText("Run the code").waitFor();
    assert.equal(await v.at("status").getAttribute("data-state"), "idle");
    assert.match(await v.runToEnd("shell", "echo of the second"), /of the second/); // meanwhile
    assert.equal(await v.at("history-item").count(), 1);
    await v.converse("mine-1");
    await v.sees("of the first");
    assert.equal(await v.at("status").getAttribute("data-state"), "running");
    await go("mine-1");
    assert.match(await v.ended("ok"), /done with the first/);
    await v.leave();
  },

  async "a plot after many lines is seen"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("fold");
    const seen = () =>
      v.page.waitForFunction(() => {
        const [image, pane] = ["output-image", "output"].map((id) => document.querySelector(`[data-testid=${id}]`)?.getBoundingClientRect());
        return image && image.height > 100 && image.top >= pane.top - 1 && image.top < pane.bottom - 100;
      });
    await v.runToEnd("python", 'import matplotlib.pyplot as plt\nfor i in range(60): print("line", i)\nplt.plot([1, 3, 2])\nplt.show()', { keep: true });
    await seen();
    await v.screenshot("plot-after-text");
    await v.at("editor").locator(".cm-content").press("ControlOrMeta+Enter"); // and stay in the editor
    await v.ended("ok");
    await seen();
    await v.runToEnd("shell", "echo other");
    await v.at("history-item").nth(1).locator(".row-main").click();
    await seen();
    await v.leave();
  },

  async "data frames are tables, each in its place"(browser) {
    const v = await Visitor.arrive(browser, { axe: true });
    await v.open("frames");
    const output = await v.runToEnd(
      "python",
      `import pandas as pd
df = pd.DataFrame({"city": ["Bern", "<b>Oslo</b>"], "rev": [1234567.89, 0.5]})
display(df)
display(df * 2)
print("between")
display(pd.DataFrame({f"column {i}": range(3) for i in range(18)}))
print("plain:", len(df))
sales = pd.DataFrame({("2024", "q1"): [1, 2], ("2024", "q2"): [30, 4], ("2025", "q1"): [5.25, 6]}, index=pd.MultiIndex.from_tuples([("north", "a"), ("north", "b")], names=["region", "shop"]))
sales`,
      { keep: true },
    );
    assert.equal(await v.at("output-table").count(), 4);
    assert.match(output, /<b>Oslo<\/b>[^]*between[^]*column 17[^]*plain: 2[^]*region[^]*5\.25/);
    assert.equal((output.match(/column 17/g) ?? []).length, 1, "a table stands in place of its text");
    assert.match(output, /1234567\.89|1\.234568e\+06/);
    const first = v.at("output-table").first();
    assert.equal(await first.locator("tbody tr").count(), 2, "two tables do not become one");
    assert.equal(await first.getByRole("cell", { name: "0.5" }).first().evaluate((cell) => getComputedStyle(cell).textAlign), "right");
    await v.accessible("tables");
    await v.screenshot("tables");
    await v.at("theme-switch").click();
    await v.accessible("tables in the other theme");
    await v.screenshot("tables-dark");
    await v.page.setViewportSize({ width: 360, height: 740 });
    await v.at("output-table").first().scrollIntoViewIfNeeded();
    await v.noSidewaysScroll("with wide tables");
    await v.screenshot("tables-phone");
    // After a reload as well, from what the server keeps.
    await v.page.reload();
    await arrived(v.page);
    await v.at("history-item").locator(".row-main").click();
    await v.ended("ok");
    assert.equal(await v.at("output-table").count(), 4);
    await v.leave();
  },

  async "the name of a conversation"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("named");
    await v.runToEnd("shell", "echo x > kept.txt");
    await v.at("session-input").fill("named-2");
    await v.at("editor").locator(".cm-content").click(); // somewhere else
    assert.equal(await v.at("session-input").inputValue(), "named");
    await v.row("kept.txt").waitFor();
    await v.at("session-input").fill("named-2");
    await v.at("session-input").press("Enter");
    await v.at("confirm-dialog").getByText("named keeps its name").waitFor();
    await v.page.keyboard.press("Escape");
    assert.equal(await v.at("session-input").inputValue(), "named");
    await v.row("kept.txt").waitFor();
    await v.leave();
  },

  async "Enter deletes one file"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("delete-one");
    for (const name of ["a.txt", "b.txt", "c.txt"]) await v.upload(name, name);
    await v.row("c.txt").getByTestId("file-delete").focus();
    await v.page.keyboard.press("Enter");
    await v.at("confirm-dialog").waitFor();
    await v.page.keyboard.press("Enter"); // the careful answer is the one at hand
    await v.at("confirm-dialog").waitFor({ state: "detached" });
    await v.row("c.txt").getByTestId("file-delete").press("Enter");
    await v.at("confirm-yes").press("Enter");
    await v.row("c.txt").waitFor({ state: "detached" });
    await v.page.keyboard.press("Enter"); // once too often: it opens the next file, and does not ask to delete it
    await v.at("preview-dialog").or(v.at("confirm-dialog")).waitFor();
    assert.equal(await v.at("confirm-dialog").count(), 0);
    await v.page.keyboard.press("Escape");
    // A key that is held down asks, and does not answer.
    await v.row("b.txt").getByTestId("file-delete").focus();
    await v.page.keyboard.down("Enter");
    await v.at("confirm-dialog").waitFor();
    for (let i = 0; i < 5; i++) await v.page.keyboard.down("Enter");
    await v.page.keyboard.up("Enter");
    await v.page.evaluate(() => new Promise(requestAnimationFrame));
    assert.equal(await v.at("confirm-dialog").count(), 1);
    await v.page.keyboard.press("Escape");
    const { artifacts } = await call("list_artifacts", { session_id: "delete-one" });
    assert.equal(artifacts.length, 2);
    await v.leave();
  },

  async "switches in forced colours"(browser) {
    const v = await Visitor.arrive(browser, { forcedColors: "active" });
    await v.open("forced");
    const look = () => v.page.locator("[data-testid=persist-switch] + .track").evaluate((track) => [getComputedStyle(track), getComputedStyle(track, "::after")].map((s) => s.backgroundColor).concat(getComputedStyle(track).borderTopWidth));
    await v.at("persist-switch").setChecked(false, { force: true });
    const [off, knob, border] = await look();
    await v.at("persist-switch").setChecked(true, { force: true });
    const [on, onKnob] = await look();
    assert.notEqual(off, on, "on and off look different");
    assert.notEqual(knob, off, "the knob is seen");
    assert.notEqual(onKnob, on, "the knob is seen");
    assert.equal(border, "1px");
    await v.screenshot("forced-colours");
    await v.leave();
  },

  async "a variable with a wrong name"(browser) {
    const v = await Visitor.arrive(browser, { axe: true });
    await v.open("wrong-name");
    await v.at("settings-open").click();
    for (const [name, value] of [["GOOD", "yes"], ["2 BAD", "no"]]) {
      await v.at("env-add").click();
      await v.at("env-name").last().fill(name);
      await v.at("env-value").last().fill(value);
    }
    await v.page.getByText("does not begin with a digit").waitFor();
    assert.equal(await v.at("env-name").last().getAttribute("aria-invalid"), "true");
    assert.equal(await v.at("env-name").first().getAttribute("aria-invalid"), "false");
    await v.accessible("a wrong name");
    await v.screenshot("wrong-name");
    await v.at("settings-close").click();
    assert.match(await v.runToEnd("shell", 'echo "[$GOOD]"'), /\[yes\]/);
    await v.leave();
  },

  async "new files and changed files, and hints for people"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("marks");
    await v.upload("old.txt", "old");
    await v.runToEnd("shell", "echo more >> old.txt; echo x > fresh.txt");
    await v.row("fresh.txt").getByText("new", { exact: true }).waitFor();
    await v.row("old.txt").getByText("changed", { exact: true }).waitFor();
    await v.at("settings-open").click();
    await v.at("timeout-input").fill("1");
    await v.at("settings-close").click();
    const output = await v.runToEnd("shell", "sleep 30", { state: "failed" });
    assert.match(output, /time limit in the settings/i);
    assert.ok(!/timeout_seconds/.test(output), output);
    await v.leave();
  },

  async "what an agent does in the same conversation"(browser) {
    const v = await Visitor.arrive(browser, { axe: true });
    await v.open("shared");
    await v.runToEnd("shell", "echo mine");
    await call("run_code", { conversationId: "shared", language: "shell", code: "echo from the agent; echo x > agent.txt" });
    await v.row("agent.txt").getByText("new", { exact: true }).waitFor();
    const theirs = v.page.locator("[data-testid=history-item][data-foreign=true]");
    await theirs.and(v.page.locator("[data-outcome=ok]")).waitFor();
    assert.match(await v.output(), /mine/, "what one looks at stays");
    await theirs.locator(".row-main").click();
    await v.sees("from the agent");
    const { run_id } = await call("run_code", { conversationId: "shared", language: "shell", code: "echo working; sleep 60", background: true });
    const going = theirs.and(v.page.locator("[data-outcome=running]"));
    await going.waitFor();
    await going.locator(".row-main").click();
    await v.sees("working"); // as it comes
    await v.accessible("an agent's run");
    await v.screenshot("agent");
    assert.ok(await v.at("run").isVisible(), "an agent's run does not keep people from theirs");
    await call("cancel_run", { run_id });
    await theirs.and(v.page.locator("[data-outcome=stopped]")).waitFor();
    await v.page.reload();
    await arrived(v.page);
    await v.page.waitForFunction(() => document.querySelectorAll("[data-testid=history-item]").length === 3);
    // What was cleared does not come back.
    await v.at("history-clear").click();
    await v.page.reload();
    await v.runToEnd("shell", "echo x > later.txt");
    await v.row("later.txt").getByText("new", { exact: true }).waitFor(); // with the list of runs
    assert.equal(await v.at("history-item").count(), 1);
    await v.leave();
  },
};
