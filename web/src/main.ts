// The page at /. It reaches the server only through /mcp and signed /files links.
import { Connection, hideBanner, showBanner } from "./connection.ts";
import { openConnect } from "./connect.ts";
import { ConversationBar } from "./conversations.ts";
import { announce, ask, byId, copy, h } from "./dom.ts";
import { createEditor } from "./editor.ts";
import { examplesFor } from "./examples.ts";
import { FilesPane } from "./files.ts";
import { duration } from "./format.ts";
import { HistoryPane, restartTag } from "./history.ts";
import { KeyDialog, keyFromAddress } from "./keydialog.ts";
import { CallError, Client, type Tool } from "./mcp.ts";
import { createMenu } from "./menu.ts";
import { Runs, type Run } from "./runs.ts";
import { detailsKey, type RunView, type Status } from "./runview.ts";
import { Settings } from "./settings.ts";
import { fields, list, number, text, texts } from "./shape.ts";
import { applyThemeTo } from "./shown.ts";
import { drafts, key, preferences, type Cell } from "./store.ts";
import { themeSwitch } from "./theme.ts";
import { hideToast, showToast } from "./toast.ts";

interface Runner {
  language: string;
  version: string;
  title: string;
  libraries: string[];
  persistent: boolean;
}

const nonce = document.querySelector<HTMLMetaElement>('meta[name="csp-nonce"]')?.content ?? "";
const runTools = ["run", "run_code", "run_python"];
const keptViews = 30;
const stopDelay = 500; // ms after it replaces Run, in which Stop ignores clicks
const refreshInterval = 700; // ms between two refreshes for other clients' changes

let runners: Runner[] = [];
let tools = new Map<string, Tool>();
let shown: RunView | undefined;
let language = preferences.get().language ?? "python";
let unasked: Run | undefined; // the last run, whose result the page shows by itself
const views = new Map<string, RunView>(); // of cells whose output this page has

keyFromAddress();
const client = new Client(key.get);
const keyDialog = new KeyDialog((token) => new Client(() => token), () => connection.reconnect());
const connection = new Connection(client, () => key.get() !== "", {
  online: () => void refresh(),
  changed: lookAgain,
  keyRefused,
});
const settings = new Settings(client, {
  trouble,
  forgetKey() {
    key.forget();
    connection.reconnect();
    keyDialog.open();
  },
});
const conversation = new ConversationBar(client, openConversation);
const files = new FilesPane(client, () => conversation.id, trouble, (listed) => cells.learn(listed));
const cells = new HistoryPane({ show: showCell, edit: editCell, rerun: (cell) => run(cell), isQueued: (cell) => waits(cell), restored: resume });
const output = byId("output");
const blank = [...output.childNodes];
const languages = byId<HTMLSelectElement>("language-select");
const keep = byId<HTMLInputElement>("persist-switch");
const restart = byId<HTMLButtonElement>("restart");

const runs = new Runs(client, output, nonce, { changed: showProgress, queued: () => cells.refresh(), ended: showEnd, trouble, back: () => connection.back() });

let unsaved: (() => void) | undefined;
let saving: ReturnType<typeof setTimeout> | undefined;
const editor = createEditor(byId("editor"), nonce, {
  run: () => run(),
  stop,
  change(text) {
    const [id, name] = [conversation.id, language];
    unsaved = () => drafts.set(id, name, text);
    clearTimeout(saving);
    saving = setTimeout(saveNow, 300);
  },
});

// Errors, shown where they can be seen.

function keyRefused(): void {
  // The first of several calls with a bad key has handled it.
  if (client.refused !== key.get() || key.fallBack()) connection.reconnect();
  else keyDialog.open("The server does not accept this key.");
}

function trouble(err: unknown): void {
  if (!(err instanceof CallError)) throw err;
  if (err.trouble === "key") keyRefused();
  else if (err.trouble === "offline") connection.reconnect();
  else if (err.trouble === "busy") showBanner("busy", err.message);
  else if (err.trouble === "refused") showBanner("error", err.message);
}

// What the server offers.

async function refresh(): Promise<void> {
  try {
    tools = await client.tools();
    runs.tools = tools;
    const running = runTools.map((name) => tools.get(name)).find((tool) => tool !== undefined);
    settings.limits = {
      maxTimeout: running?.get("timeout_seconds")?.maximum,
      services: tools.has("list_services"),
      keptEnvironment: tools.get("run")?.has("environment") ?? true,
    };
    files.abilities = { list: tools.has("list_artifacts"), upload: tools.has("upload_file"), remove: tools.has("delete_file") };
    byId<HTMLButtonElement>("run").disabled = !running;
    if (!running) showBanner("error", "This server offers no tool that runs code (see SANDBOX_TOOLS), so this page cannot run any.");
    runners = tools.has("list_runners") ? list((await client.json("list_runners", {}))["languages"]).map(runnerOf).filter((r) => r.language !== "") : [];
    void settings.refreshServices();
    await files.refresh();
  } catch (err) {
    trouble(err);
    return;
  }
  if (runners.length === 0) runners = namedByTools().map((name) => runnerOf({ language: name }));
  languages.replaceChildren(...runners.map((r) => h("option", { value: r.language }, titleOf(r))));
  const known = runners.some((r) => r.language === language);
  if (!known) selectLanguage(runners[0]!.language);
  languages.value = language;
  describeLanguage();
  resume();
}

let looking = false;

/** Refreshes files and runs now, and once more if something changes meanwhile. */
function lookAgain(): void {
  if (looking) return;
  looking = true;
  setTimeout(() => {
    looking = false;
    void files.refresh();
  }, refreshInterval);
}

function runnerOf(value: unknown): Runner {
  const r = fields(value);
  const name = text(r["language"]);
  return { language: name, version: text(r["version"]), title: text(r["title"]), libraries: texts(r["libraries"]), persistent: r["persistent"] !== false };
}

/** Returns the languages that the run tools name, for a server without a list of them. */
function namedByTools(): string[] {
  const choices = tools.get("run")?.get("env")?.choices ?? tools.get("run_code")?.get("language")?.choices ?? [];
  return choices.length > 0 ? choices : ["python"];
}

const titles = new Map(Object.entries({ python: "Python", typescript: "TypeScript", javascript: "JavaScript", shell: "Shell" }));

function titleOf(r: Runner): string {
  return titles.get(r.language) ?? (r.title || r.language);
}

function describeLanguage(): void {
  const runner = runners.find((r) => r.language === language);
  const parts = [runner?.version, runner?.libraries?.join(", ")].filter(Boolean);
  const line = byId("libraries");
  line.textContent = parts.join(" · ");
  line.title = parts.join(" · ");
  const unknown = tools.size === 0; // before the server has answered
  const canKeep = unknown || (tools.has("run") && runner?.persistent !== false);
  const canForget = unknown || tools.has("run_code") || (!tools.has("run") && tools.has("run_python"));
  keep.disabled = !(canKeep && canForget);
  keep.checked = canKeep && (!canForget || (preferences.get().keep ?? true));
  showRestart();
}

/** Offers to restart the interpreter where one is kept. */
function showRestart(): void {
  restart.disabled = restarting || !keep.checked || !tools.get("run")?.has("restart");
}

function selectLanguage(name: string): void {
  saveNow();
  language = name;
  preferences.set({ language });
  languages.value = name;
  loadCode();
  describeLanguage();
}

/** Shows the draft of the conversation and language. */
function loadCode(): void {
  hideToast();
  editor.load(`${conversation.id}/${language}`, drafts.get(conversation.id, language) ?? examplesFor(language)[0]?.code ?? "", language);
}

/** Offers the draft of another tab if this one has none. */
function offerOtherDraft(): void {
  const all = drafts.all(conversation.id).filter((d) => d.language === language);
  const other = all.find((d) => !d.mine && d.text.trim() !== "" && d.text !== editor.code);
  if (all[0]?.mine || !other) return;
  showToast("Another tab has written other code in this conversation.", { label: "Show it", act: () => setCode(other.text) });
}

function saveNow(): void {
  clearTimeout(saving);
  unsaved?.();
  unsaved = undefined;
}

function openConversation(id: string): void {
  saveNow();
  document.documentElement.dataset["conversation"] = id;
  const written = drafts.language(id);
  if (written && written !== language && (runners.length === 0 || runners.some((r) => r.language === written))) {
    language = written;
    if (![...languages.options].some((o) => o.value === written)) languages.append(h("option", { value: written }, titles.get(written) ?? written));
    languages.value = written;
    describeLanguage();
  }
  loadCode();
  offerOtherDraft();
  cells.load(id);
  files.clear();
  show(undefined);
  resume();
  showRunning();
  if (key.get() !== "") void files.refresh();
}

// Running.

function run(cell?: Cell): void {
  const id = conversation.id;
  if (byId<HTMLButtonElement>("run").disabled) return;
  if (key.get() === "") return keyDialog.open();
  const what = { code: cell?.code ?? editor.code, language: cell?.language ?? language, keep: cell?.keep ?? keep.checked };
  const going = runs.of(id)?.cell; // other code is queued behind it
  if (going && going.code === what.code && going.language === what.language) return showToast("This code is running already.");
  if (what.code.trim() === "") return showToast("There is no code to run.");
  if (connection.down) return connection.refuse();
  hideBanner("busy");
  hideBanner("error");
  saveNow();
  files.settle();
  const started = runs.start(id, cells.add(id, what), ...callOf(what, id));
  show(started.view);
  byId("stop").ariaDisabled = "true";
  setTimeout(() => (byId("stop").ariaDisabled = null), stopDelay);
  showRunning();
  announce("Running.");
}

/** Follows the active runs of this conversation and shows the last one, or the last result. */
function resume(): void {
  if (key.get() === "" || !client.detailed || !tools.has("wait_run")) return;
  const going = cells.going().map((cell) => runs.resume(conversation.id, cell));
  if (going.length > 0 && !shown) {
    show(going.at(-1)!.view);
    cells.mark(going.at(-1)!.cell.id);
  }
  const last = shown ? undefined : cells.last();
  if (last) {
    cells.mark(last.id);
    const view = views.get(last.id);
    if (!view) unasked = runs.resume(conversation.id, last);
    show(view ?? unasked!.view);
  }
  showRunning();
}

function showProgress(run: Run): void {
  if (shown === run.view) showStatus(run.view.status, run.view.elapsed);
}

function showEnd(run: Run): void {
  const { view } = run;
  views.delete(run.cell.id);
  if (view.status.state !== "lost") views.set(run.cell.id, view);
  const oldest = views.keys().next().value;
  if (views.size > keptViews && oldest !== undefined) views.delete(oldest);
  cells.refresh();
  if (run === unasked && shown === view && ["lost", "error"].includes(view.status.state)) {
    cells.mark("");
    show(undefined); // nobody has asked for it
  } else if (shown === view) {
    showStatus(view.status, view.elapsed);
    if (run !== unasked) announce(`${view.status.title}, ${[...view.status.facts, lineCount(view)].join(", ")}.`);
  }
  showRunning();
  if (run.conversation === conversation.id) void files.refresh();
}

function callOf(what: { code: string; language: string; keep: boolean }, id: string): [tool: string, args: object] {
  const common = { code: what.code, network: settings.network, ...(settings.timeout ? { timeout_seconds: settings.timeout } : {}) };
  const fresh = ["run_code", "run", "run_python"].find((name) => tools.has(name)) ?? "run_code";
  const tool = what.keep && tools.has("run") ? "run" : fresh;
  const optional = {
    ...(tools.get(tool)?.has("environment") ? { environment: settings.environment } : {}),
    ...(tools.get(tool)?.has("services") && settings.services.length > 0 ? { services: settings.services.map((name) => ({ name })) } : {}),
  };
  if (tool === "run") return [tool, { ...common, ...optional, env: what.language, session: id }];
  if (tool === "run_python") return [tool, { ...common, ...optional, session_id: id }];
  return [tool, { ...common, ...optional, conversationId: id, language: what.language }];
}

let restarting = false;

/** Starts a new interpreter for the conversation and language, if the person agrees. */
async function restartInterpreter(): Promise<void> {
  const [id, env] = [conversation.id, language];
  const runner = runners.find((r) => r.language === env);
  const name = runner ? titleOf(runner) : env;
  if (key.get() === "") return keyDialog.open();
  if (connection.down) return connection.refuse();
  const detail = `Its variables, imports and functions are lost${runs.of(id) ? ", and its running code is stopped" : ""}. Files stay.`;
  if (!(await ask(`Restart the ${name} interpreter?`, detail, "Restart"))) return;
  restarting = true;
  showRestart();
  try {
    // Code must not be empty.
    const { meta } = await client.call("run", { code: "\n", env, session: id, network: settings.network, restart: true }, { details: true, tag: restartTag });
    const { exit_code, cause } = fields(meta[detailsKey]);
    if ((number(exit_code) ?? 0) !== 0 || text(cause) !== "") showBanner("error", `The ${name} interpreter did not start${text(cause) ? `: ${text(cause).replaceAll("_", " ")}` : ""}. Run some code to see why.`);
    else showToast(`The ${name} interpreter was restarted. Its variables are gone.`);
  } catch (err) {
    trouble(err);
  } finally {
    restarting = false;
    showRestart();
    if (document.activeElement === document.body) restart.focus();
  }
}

/** Whether an active run waits for another one, if this page follows it. */
function waits(cell: Cell): boolean | undefined {
  const run = runs.get(cell);
  return run && run.began === Infinity;
}

/** Stops the active run. Returns whether there was one. */
function stop(): boolean {
  const going = runs.of(conversation.id);
  if (going) runs.stop(going);
  return going !== undefined;
}

function lineCount(view: RunView): string {
  const n = view.lineCount;
  return n === 1 ? "1 line of output" : `${n} lines of output`;
}

// Showing runs.

function show(view: RunView | undefined): void {
  shown?.detach();
  shown = view;
  output.replaceChildren(...(view ? [view.element] : blank));
  output.scrollTop = 0;
  view?.attach();
  void view?.reveal();
  byId<HTMLButtonElement>("output-copy").disabled = !view;
  showStatus(view?.status ?? { state: "idle", title: "Ready", facts: [] }, view?.elapsed ?? 0);
}

function showStatus(status: Status, elapsed: number): void {
  const line = byId("status");
  line.dataset["state"] = status.state;
  for (const [name, value] of [["exitCode", status.exitCode], ["cause", status.cause]] as const) {
    if (value === undefined || value === "") delete line.dataset[name];
    else line.dataset[name] = String(value);
  }
  const facts = status.state === "running" && status.facts.length === 0 ? [duration(elapsed)] : status.facts;
  // A narrow line breaks between facts, not within them.
  byId("stop-other").hidden = !runs.shownIn(shown)?.cell.foreign || !tools.has("cancel_run");
  byId("status-text").replaceChildren(h("b", {}, status.title), ...facts.flatMap((f) => [" ", h("span", { class: "fact" }, `· ${f}`)]));
}

/** Offers to stop the active run, or to start one. */
function showRunning(): void {
  const on = runs.of(conversation.id) !== undefined;
  const [runButton, stopButton] = [byId<HTMLButtonElement>("run"), byId<HTMLButtonElement>("stop")];
  const focused = document.activeElement === runButton || document.activeElement === stopButton;
  runButton.hidden = on;
  stopButton.hidden = !on;
  if (focused) (on ? stopButton : runButton).focus();
}

function showCell(cell: Cell): void {
  cells.mark(cell.id);
  const view = runs.get(cell)?.view ?? views.get(cell.id);
  if (!view && (cell.runId === "" || !client.detailed || !tools.has("wait_run"))) return editCell(cell); // its output went with the page that ran it
  show(view ?? runs.resume(conversation.id, cell).view);
  output.focus();
}

function editCell(cell: Cell): void {
  if (cell.foreign) return;
  if (cell.language !== language && runners.some((r) => r.language === cell.language)) selectLanguage(cell.language);
  setCode(cell.code);
}

/** Puts code into the editor and offers to undo it. */
function setCode(text: string): void {
  const before = editor.code;
  if (text !== before) {
    editor.replace(text);
    const example = examplesFor(language, settings.services[0]).some((e) => e.code === before);
    if (before.trim() !== "" && !example) showToast("The code in the editor was replaced.", { label: "Undo", act: () => (editor.undo(), editor.focus()) });
  }
  saveNow();
  editor.focus();
}

// Controls.

byId("run").addEventListener("click", () => run());
// Stop takes the place of Run: it ignores the second half of a double click, and a key that is held
// down.
byId("stop").addEventListener("click", (event) => (event.currentTarget as HTMLElement).ariaDisabled !== "true" && stop());
byId("stop").addEventListener("keydown", (event) => event.repeat && event.preventDefault());
byId("stop-other").addEventListener("click", () => {
  const going = runs.shownIn(shown);
  if (going) runs.stop(going);
});
byId("connect-open").addEventListener("click", () => openConnect(key.get()));
byId("output-copy").addEventListener("click", (event) => {
  if (shown) void copy(event.currentTarget as HTMLButtonElement, shown.text);
});
languages.addEventListener("change", () => selectLanguage(languages.value));
keep.addEventListener("change", () => {
  preferences.set({ keep: keep.checked });
  showRestart();
});
restart.addEventListener("click", () => void restartInterpreter());
byId("run-key").textContent = /Mac|iPhone|iPad/.test(navigator.userAgent) ? "⌘" : "Ctrl";
addEventListener("keydown", (event) => {
  if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && stop()) event.preventDefault();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    run();
  }
});
addEventListener("hashchange", () => {
  if (!keyFromAddress()) return;
  keyDialog.close();
  connection.reconnect();
});
addEventListener("pagehide", saveNow);
themeSwitch(() => applyThemeTo(output));

const exampleList = byId("examples-list");
const examples = createMenu(byId<HTMLButtonElement>("examples-open"), exampleList, () => {
  const all = examplesFor(language, settings.services[0]);
  exampleList.replaceChildren(
    ...all.map((example) =>
      h(
        "button",
        {
          type: "button", role: "menuitem", tabindex: -1, "data-testid": "example-item", "data-example": example.name,
          onclick: () => {
            examples.close();
            if (example.network) settings.network = true;
            setCode(example.code);
            if (example.network) announce("Network access is on now. It can be turned off in the settings.");
          },
        },
        h("span", { class: "title" }, example.title),
        h("span", { class: "about" }, example.about),
      ),
    ),
  );
  if (all.length === 0) exampleList.append(h("div", { role: "menuitem", "aria-disabled": "true", tabindex: -1, class: "hint" }, "There are no examples for this language."));
});

languages.replaceChildren(h("option", { value: language }, titles.get(language) ?? language));
describeLanguage();
openConversation(conversation.id);
if (key.get() === "") keyDialog.open();
else editor.focus();
document.documentElement.dataset["ready"] = "true";
void connection.watch();
