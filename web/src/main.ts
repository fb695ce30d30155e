// The page at /. It talks to the server through /mcp and signed /files links alone.
import { Connection, hideBanner, showBanner } from "./connection.ts";
import { openConnect } from "./connect.ts";
import { ConversationBar } from "./conversations.ts";
import { announce, byId, copy, h } from "./dom.ts";
import { createEditor } from "./editor.ts";
import { examplesFor } from "./examples.ts";
import { FilesPane } from "./files.ts";
import { duration } from "./format.ts";
import { HistoryPane } from "./history.ts";
import { KeyDialog, keyFromAddress } from "./keydialog.ts";
import { CallError, Client, type Tool } from "./mcp.ts";
import { createMenu } from "./menu.ts";
import { RunView, type Status } from "./runview.ts";
import { Settings } from "./settings.ts";
import { fields, list, text, texts } from "./shape.ts";
import { code, key, preferences, type Cell } from "./store.ts";
import { themeSwitch } from "./theme.ts";

interface Runner {
  language: string;
  version: string;
  title: string;
  libraries: string[];
  persistent: boolean;
}

interface Running {
  view: RunView;
  abort: AbortController;
  runId: string;
  stopping: boolean;
}

const nonce = document.querySelector<HTMLMetaElement>('meta[name="csp-nonce"]')?.content ?? "";
const runTools = ["run", "run_code", "run_python"];
const keptViews = 30;
const stopPatience = 8_000;

let runners: Runner[] = [];
let tools = new Map<string, Tool>();
let running: Running | undefined;
let shown: RunView | undefined;
let language = preferences.get().language ?? "python";
const views = new Map<string, RunView>(); // of cells that ran since the page was loaded

keyFromAddress();
const client = new Client(key.get);
const keyDialog = new KeyDialog((token) => new Client(() => token), () => connection.reconnect());
const connection = new Connection(client, () => key.get() !== "", {
  online: () => void refresh(),
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
const files = new FilesPane(client, () => conversation.id, trouble);
const cells = new HistoryPane({ show: showCell, edit: editCell, rerun: (cell) => void run(cell) });
const output = byId("output");
const blank = [...output.childNodes];
const languages = byId<HTMLSelectElement>("language-select");
const keep = byId<HTMLInputElement>("persist-switch");

let unsaved: (() => void) | undefined;
let saving: ReturnType<typeof setTimeout> | undefined;
const editor = createEditor(byId("editor"), nonce, {
  run: () => void run(),
  stop,
  change(text) {
    const [id, name] = [conversation.id, language];
    unsaved = () => code.set(id, name, text);
    clearTimeout(saving);
    saving = setTimeout(saveNow, 300);
  },
});

// What went wrong, told where it can be seen.

function keyRefused(): void {
  // Of several calls with a key that is no good, the first has seen to it.
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

// What the server has.

async function refresh(): Promise<void> {
  try {
    tools = await client.tools();
    const running = runTools.map((name) => tools.get(name)).find((tool) => tool !== undefined);
    settings.limits = {
      maxTimeout: running?.get("timeout_seconds")?.maximum,
      services: tools.has("list_services"),
      keptEnvironment: tools.get("run")?.has("environment") ?? true,
    };
    files.abilities = { list: tools.has("list_artifacts"), upload: tools.has("upload_file"), remove: tools.has("delete_file") };
    byId<HTMLButtonElement>("run").disabled = !running;
    if (!running) showBanner("error", "This server offers none of its tools that run code (see SANDBOX_TOOLS), so nothing can be run from this page.");
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
}

function runnerOf(value: unknown): Runner {
  const r = fields(value);
  const name = text(r["language"]);
  return { language: name, version: text(r["version"]), title: text(r["title"]), libraries: texts(r["libraries"]), persistent: r["persistent"] !== false };
}

/** The languages as the run tools name them, for a server that has no list of them. */
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
}

function selectLanguage(name: string): void {
  saveNow();
  language = name;
  preferences.set({ language });
  languages.value = name;
  editor.load(code.get(conversation.id, name) ?? examplesFor(name)[0]?.code ?? "", name);
  describeLanguage();
}

function saveNow(): void {
  clearTimeout(saving);
  unsaved?.();
  unsaved = undefined;
}

function openConversation(id: string): void {
  saveNow();
  editor.load(code.get(id, language) ?? examplesFor(language)[0]?.code ?? "", language);
  cells.load(id);
  files.clear();
  if (!running) show(undefined);
  if (key.get() !== "") void files.refresh();
}

// Running.

async function run(cell?: Cell): Promise<void> {
  if (running || byId<HTMLButtonElement>("run").disabled) return;
  if (key.get() === "") return keyDialog.open();
  hideBanner("busy");
  hideBanner("error");
  const what = { code: cell?.code ?? editor.code, language: cell?.language ?? language, keep: cell?.keep ?? keep.checked };
  const id = conversation.id;
  const view = new RunView(output, nonce);
  const mine: Running = { view, abort: new AbortController(), runId: "", stopping: false };
  running = mine;
  saveNow();
  show(view);
  showRunning(true);
  announce("Running.");
  const started = performance.now();
  const clock = setInterval(() => {
    view.elapsed = performance.now() - started;
    if (shown === view) showStatus(view.status, view.elapsed);
  }, 100);
  const before = files.snapshot();
  try {
    const [tool, args] = callOf(what, id);
    const result = await client.call(tool, args, {
      details: true,
      signal: mine.abort.signal,
      onProgress({ message, meta }) {
        mine.runId ||= text(meta["mcp-code-sandbox/run_id"]);
        view.progress(message, meta);
      },
    });
    view.finish(result, performance.now() - started);
  } catch (caught) {
    const err = caught instanceof CallError ? caught : new CallError("refused", String(caught));
    view.elapsed = performance.now() - started;
    view.fail(err);
    if (err.trouble === "key" || err.trouble === "offline") trouble(err);
    if (err.trouble === "busy") showBanner("busy", err.message);
  } finally {
    clearInterval(clock);
    running = undefined;
    showRunning(false);
  }
  const done = cells.add(id, { ...what, at: Date.now(), outcome: outcomeOf(view.status), duration: view.elapsed });
  remember(id, done, view);
  if (shown === view) showStatus(view.status, view.elapsed);
  announce(`${view.status.title}, ${[...view.status.facts, lineCount(view)].join(", ")}.`);
  if (id === conversation.id) await files.refresh(before);
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

/** Ends the run that is going; reports whether there was one. */
function stop(): boolean {
  const mine = running;
  if (!mine) return false;
  if (mine.stopping || mine.runId === "") {
    mine.abort.abort(); // asked twice, or the server has not said which run it is: the end of the connection ends it
    return true;
  }
  mine.stopping = true;
  mine.view.status = { ...mine.view.status, title: "Stopping" };
  client.call("cancel_run", { run_id: mine.runId }).catch(() => mine.abort.abort());
  setTimeout(() => running === mine && mine.abort.abort(), stopPatience);
  return true;
}

function outcomeOf(status: Status): Cell["outcome"] {
  return status.state === "idle" || status.state === "running" ? "error" : status.state;
}

function lineCount(view: RunView): string {
  const n = view.log.lines.all.length;
  return n === 1 ? "1 line of output" : `${n} lines of output`;
}

// Showing runs.

function show(view: RunView | undefined): void {
  shown?.log.detach();
  shown = view;
  output.replaceChildren(...(view ? [view.element] : blank));
  output.scrollTop = 0;
  view?.log.attach();
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
  const facts = status.state === "running" ? [duration(elapsed)] : status.facts;
  // A line that is too narrow breaks between facts, not in them.
  byId("status-text").replaceChildren(h("b", {}, status.title), ...facts.flatMap((f) => [" ", h("span", { class: "fact" }, `· ${f}`)]));
}

function showRunning(on: boolean): void {
  const [runButton, stopButton] = [byId<HTMLButtonElement>("run"), byId<HTMLButtonElement>("stop")];
  const focused = document.activeElement === runButton || document.activeElement === stopButton;
  runButton.hidden = on;
  stopButton.hidden = !on;
  if (focused) (on ? stopButton : runButton).focus();
}

function remember(id: string, cell: Cell, view: RunView): void {
  views.set(`${id} ${cell.id}`, view);
  const oldest = views.keys().next().value;
  if (views.size > keptViews && oldest !== undefined) views.delete(oldest);
}

function showCell(cell: Cell): void {
  if (running) return;
  const view = views.get(`${conversation.id} ${cell.id}`);
  cells.mark(cell.id);
  if (!view) return editCell(cell); // its output went with the page that ran it
  show(view);
  output.focus();
}

function editCell(cell: Cell): void {
  if (cell.language !== language && runners.some((r) => r.language === cell.language)) selectLanguage(cell.language);
  setCode(cell.code);
}

function setCode(text: string): void {
  saveNow();
  editor.load(text, language);
  code.set(conversation.id, language, text);
  editor.focus();
}

// Controls.

byId("run").addEventListener("click", () => void run());
byId("stop").addEventListener("click", () => stop());
byId("connect-open").addEventListener("click", () => openConnect(key.get()));
byId("output-copy").addEventListener("click", (event) => {
  if (shown) void copy(event.currentTarget as HTMLButtonElement, shown.log.lines.text());
});
languages.addEventListener("change", () => selectLanguage(languages.value));
keep.addEventListener("change", () => preferences.set({ keep: keep.checked }));
byId("run-key").textContent = /Mac|iPhone|iPad/.test(navigator.userAgent) ? "⌘" : "Ctrl";
addEventListener("keydown", (event) => {
  if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && stop()) event.preventDefault();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    void run();
  }
});
addEventListener("hashchange", () => {
  if (!keyFromAddress()) return;
  keyDialog.close();
  connection.reconnect();
});
addEventListener("pagehide", saveNow);
themeSwitch();

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
