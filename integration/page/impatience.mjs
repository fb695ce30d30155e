// Stories about people in a hurry: they press twice, go offline, change their minds, and look away before the end.
import assert from "node:assert/strict";
import { call, Visitor } from "./harness.mjs";
import { arrived, go, waiting } from "./work.mjs";

const disconnected = /ERR_INTERNET_DISCONNECTED|ERR_NETWORK_CHANGED|ERR_NETWORK_IO_SUSPENDED/;
const offline = (v) => v.page.locator("[data-testid=banner][data-kind=offline]");

export const impatience = {
  async "in a hurry: offline"(browser) {
    const v = await Visitor.arrive(browser);
    v.tolerate(disconnected);
    await v.open("hurry-offline");
    await v.write("shell", "echo now");
    await v.context.setOffline(true);
    await offline(v).waitFor();
    await v.at("run").click();
    await offline(v).getByText("Not run: the server cannot be reached").waitFor();
    assert.equal(await v.at("history-item").count(), 0, "what was not started is no part of the history");
    const back = Date.now();
    await v.context.setOffline(false);
    await offline(v).waitFor({ state: "hidden" });
    assert.ok(Date.now() - back < 5000, `back after ${Date.now() - back} ms`);
    assert.match(await v.runToEnd("shell", "echo now"), /now/);
    // Stop is remembered until the server can be told.
    await v.run("python", waiting("going", "to its end"));
    await v.sees("going");
    await v.context.setOffline(true);
    await offline(v).waitFor();
    await v.page.keyboard.press("Escape");
    await v.at("status").getByText(/Stopping/).waitFor();
    await v.context.setOffline(false);
    assert.ok(!(await v.ended("stopped")).includes("to its end"));
    await v.leave();
  },

  async "in a hurry: a run that was lost hides no other client's"(browser) {
    const v = await Visitor.arrive(browser);
    v.tolerate(disconnected, /ERR_FAILED/);
    await v.open("hurry-lost");
    // The call never arrives, and nobody knows it before.
    await v.page.route("**/mcp", (route) => (route.request().postData()?.includes('"echo lost"') ? route.abort() : route.continue()));
    await v.run("shell", "echo lost");
    await v.ended("lost");
    await call("run_code", { conversationId: "hurry-lost", language: "shell", code: "echo theirs" });
    await v.page.locator("[data-testid=history-item][data-foreign=true][data-outcome=ok]").waitFor();
    await v.leave();
  },

  async "in a hurry: the next cell while one is running"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("hurry-next");
    await v.run("python", waiting("first", "has ended"), { keep: true });
    await v.sees("first");
    await v.write("python", "print('second')", { keep: true });
    await v.at("editor").locator(".cm-content").press("ControlOrMeta+Enter");
    await v.at("status").getByText("Queued").waitFor();
    await v.at("editor").locator(".cm-content").press("ControlOrMeta+Enter"); // the same again
    await v.page.getByText("This code is running already.").waitFor();
    await go("hurry-next");
    assert.match(await v.ended("ok"), /second/);
    assert.equal(await v.at("history-item").count(), 2);
    await v.leave();
  },

  async "in a hurry: pressing twice"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("hurry-twice");
    // Stop ignores clicks for a moment, which is longer here: a busy machine presses slowly.
    await v.page.evaluate(() => {
      const wait = window.setTimeout;
      window.setTimeout = (f, ms, ...rest) => wait(f, ms === 500 ? 3000 : ms, ...rest);
    });
    await v.write("python", waiting("on", "off"));
    await v.at("run").dblclick();
    await v.sees("on");
    assert.equal(await v.at("status").getAttribute("data-state"), "running");
    await go("hurry-twice");
    await v.ended("ok");
    await call("delete_file", { session_id: "hurry-twice", filename: "go" });
    await v.at("run").focus();
    for (let i = 0; i < 3; i++) await v.page.keyboard.press("Enter");
    await v.sees("on");
    assert.equal(await v.at("status").getAttribute("data-state"), "running");
    await v.page.locator("#stop:not([aria-disabled])").waitFor();
    await v.page.keyboard.press("Enter"); // meant for Stop by now
    await v.ended("stopped");
    await v.leave();
  },

  async "in a hurry: nothing to run, and a history cleared by mistake"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("hurry-clear");
    await v.run("shell", "  ");
    await v.at("toast").getByText("There is no code to run.").waitFor();
    assert.equal(await v.at("history-item").count(), 0);
    await v.runToEnd("shell", "echo precious");
    await call("run_code", { conversationId: "hurry-clear", language: "shell", code: "echo theirs" });
    await v.at("history-item").nth(1).waitFor();
    await v.at("history-clear").click();
    assert.equal(await v.at("history-item").count(), 0);
    await v.at("toast-action").click();
    await v.at("history-item").nth(1).waitFor();
    // The last result is there after a reload.
    await v.page.reload();
    await arrived(v.page);
    await v.sees("theirs");
    assert.equal(await v.at("history-item").count(), 2);
    await v.leave();
  },

  async "in a hurry: a run that waits for another one"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("hurry-queue");
    const { run_id } = await call("run", { session: "hurry-queue", env: "python", code: waiting("theirs", "end"), background: true });
    await v.run("python", "import time\nprint('mine', flush=True)\ntime.sleep(0.01)", { keep: true });
    await v.at("status").getByText("Queued").waitFor();
    await v.at("status").getByText("waits for another run").waitFor();
    await v.screenshot("queued");
    // Another client's run can be stopped from here.
    await v.page.locator("[data-testid=history-item][data-foreign=true]").locator(".row-main").click();
    await v.sees("theirs");
    await v.at("stop-other").click();
    await v.page.locator("[data-testid=history-item][data-foreign=true][data-outcome=stopped]").waitFor();
    await v.at("stop-other").waitFor({ state: "hidden" });
    await v.page.locator("[data-testid=history-item][data-outcome=ok]").locator(".row-main").click();
    assert.match(await v.ended("ok"), /mine/);
    assert.ok(run_id);
    await v.leave();
  },

  async "in a hurry: long output, tall tables and empty ones"(browser) {
    const v = await Visitor.arrive(browser);
    await v.open("hurry-long");
    const frame = "import pandas as pd\npd.set_option('display.max_rows', 1000)\ntall = pd.DataFrame({'n': range(700), 'text': ['x'] * 700})\n";
    const output = await v.runToEnd("python", `${frame}print("before")\ndisplay(tall)\nprint("after")\npd.DataFrame()`, { keep: true });
    assert.equal(await v.at("output-table").count(), 1);
    assert.match(output, /^before[^]*699[^]*after[^]*Empty DataFrame/);
    assert.equal((output.match(/\b699\b/g) ?? []).length, 2, "index and number, of the table alone");
    await v.screenshot("tall-table");
    // In its place, with much text before it.
    const much = await v.runToEnd("python", `${frame}for i in range(600): print("line", i)\ndisplay(tall)`, { keep: true });
    assert.equal(await v.at("output-table").count(), 1);
    assert.match(much, /line \d+\n[^]*699/);
    assert.equal((much.match(/\b699\b/g) ?? []).length, 2, "the table stands in place of its text");
    // Long cells wrap, and numbers stay aligned around rows that are left out.
    await v.runToEnd("python", "import pandas as pd\npd.set_option('display.max_rows', 10, 'display.max_colwidth', None)\ndisplay(pd.DataFrame({'text': ['word ' * 60], 'n': [1]}))\npd.DataFrame({'n': range(100)})", { keep: true });
    const [long, elided] = [v.at("output-table").first(), v.at("output-table").last()];
    assert.ok((await long.locator("tbody td").first().boundingBox()).height > 40, "a long cell wraps");
    assert.ok((await long.locator("table").boundingBox()).width < 500, "and its table fits");
    await elided.getByRole("cell", { name: "..." }).first().waitFor();
    assert.equal(await elided.getByRole("cell", { name: "99" }).first().evaluate((cell) => getComputedStyle(cell).textAlign), "right");
    await v.screenshot("long-cells");
    // What is said at the end is in view.
    await v.at("settings-open").click();
    for (const wrong of ["0", "-5", "1.5", "99999"]) {
      await v.at("timeout-input").fill(wrong);
      await v.at("timeout-problem").getByText("Use a whole number of seconds, from 1 to").waitFor();
    }
    await v.screenshot("wrong-time-limit");
    await v.at("timeout-input").fill("2");
    await v.at("timeout-problem").waitFor({ state: "hidden" });
    await v.at("settings-close").click();
    await v.runToEnd("shell", "seq 1 3000; sleep 30", { state: "failed" });
    await v.page.waitForFunction(() => {
      const [note, pane] = [document.querySelector("[data-testid=output] .notice:last-child"), document.querySelector("[data-testid=output]")].map((e) => e.getBoundingClientRect());
      return note.bottom <= pane.bottom + 1 && note.top >= pane.top;
    });
    await v.screenshot("time-limit");
    await v.at("history-item").first().getByText("time limit reached").waitFor();
    await v.leave();
  },
};
