// The runs of a conversation. Each can be shown, edited or run again.
import { byId, h, iconButton, keepFocus } from "./dom.ts";
import { age, causeText, duration } from "./format.ts";
import type { Listed } from "./runs.ts";
import { cells, newId, type Cell } from "./store.ts";
import { showToast } from "./toast.ts";

interface Events {
  show(cell: Cell): void;
  edit(cell: Cell): void;
  rerun(cell: Cell): void;
  /** Whether an active run waits for another one; undefined if this page does not follow it. */
  isQueued(cell: Cell): boolean | undefined;
  /** Removed runs were restored. */
  restored(): void;
}

const words = { running: "running", ok: "done", failed: "failed", stopped: "stopped", error: "not run", lost: "result gone" };

/** The tag of runs that restart an interpreter. They are no part of the history. */
export const restartTag = "restart";

export class HistoryPane {
  #conversation = "";
  #cells: Cell[] = [];
  #current = "";
  #listed: Listed[] = []; // the server's last list
  #list = byId("history-list");

  constructor(private readonly on: Events) {
    byId("history-clear").addEventListener("click", () => {
      const restore = cells.clear(this.#conversation, [...this.#cells, ...this.#listed].map((run) => run.runId));
      this.refresh();
      const undo = () => {
        restore();
        this.learn(this.#listed);
        this.on.restored();
      };
      showToast("The history was cleared.", { label: "Undo", act: undo });
    });
    cells.watch((conversation) => conversation === this.#conversation && this.refresh());
    setInterval(() => this.#render(), 30_000);
  }

  load(conversation: string): void {
    this.#conversation = conversation;
    this.#current = "";
    this.#listed = [];
    this.refresh();
  }

  /** This browser's active runs, oldest first. */
  going(): Cell[] {
    return this.#cells.filter((c) => c.outcome === "running" && !c.foreign);
  }

  /** The last run that has ended and whose result the server may have. */
  last(): Cell | undefined {
    return this.#cells.findLast((c) => c.runId !== "" && ["ok", "failed", "stopped"].includes(c.outcome));
  }

  refresh(): void {
    const all = cells.all(this.#conversation);
    // A run of another tab may have been taken for another client's before its cell arrived.
    const own = new Set(all.filter((c) => !c.foreign).map((c) => c.runId));
    this.#cells = all.filter((c) => !c.foreign || !own.has(c.runId));
    this.#render();
  }

  /** Adds a run that starts. */
  add(conversation: string, run: Pick<Cell, "code" | "language" | "keep">): Cell {
    const cell: Cell = { id: newId(), runId: "", foreign: false, at: Date.now(), outcome: "running", cause: "", duration: 0, ...run };
    cells.put(conversation, cell);
    if (conversation === this.#conversation) this.mark(cell.id);
    return cell;
  }

  /** Adds the runs that other clients started in the conversation, and their ends. */
  learn(listed: Listed[]): void {
    this.#listed = listed;
    this.refresh();
    const cleared = cells.cleared(this.#conversation);
    // A run that never started has no id, and other clients' runs have no tag: missing values are
    // not equal.
    const known = new Map(this.#cells.flatMap((c) => [[c.id, c], [c.runId, c]] as const).filter(([id]) => id !== ""));
    for (const run of listed) {
      if (run.tag === restartTag) continue;
      const cell = known.get(run.tag) ?? known.get(run.runId);
      if (cell?.foreign && cell.outcome !== run.outcome) cells.update(this.#conversation, cell.id, { outcome: run.outcome, cause: run.cause, duration: run.duration });
      if (cell || cleared.includes(run.runId)) continue;
      cells.put(this.#conversation, { id: run.runId, runId: run.runId, foreign: true, language: run.runner, code: "", keep: false, at: run.started, outcome: run.outcome, cause: run.cause, duration: run.duration });
    }
    this.refresh();
  }

  mark(id: string): void {
    this.#current = id;
    this.refresh();
  }

  #render(): void {
    byId("history-empty").hidden = this.#cells.length > 0;
    byId("history-clear").hidden = this.#cells.length === 0;
    keepFocus(this.#list, "cell", () => this.#list.replaceChildren(...this.#cells.toReversed().map((cell) => this.#row(cell))));
  }

  #isQueued(cell: Cell): boolean {
    const listed = () => this.#listed.find((run) => (run.tag !== "" && run.tag === cell.id) || run.runId === cell.runId)?.queued;
    return this.on.isQueued(cell) ?? listed() ?? false;
  }

  #row(cell: Cell): HTMLElement {
    const title = cell.foreign ? "Run by another client" : firstLine(cell.code);
    const state = cell.outcome === "running" && this.#isQueued(cell) ? "queued" : cell.outcome;
    const facts = [cell.language, state === "queued" ? state : outcomeText(cell), ...(cell.outcome === "running" ? [] : [duration(cell.duration)]), age(cell.at, Date.now())];
    return h(
      "li",
      { class: "row", "data-testid": "history-item", "data-cell": cell.id, "data-outcome": cell.outcome, "data-foreign": cell.foreign ? "true" : null, "aria-current": cell.id === this.#current ? "true" : null },
      h(
        "button",
        { type: "button", class: "row-main", title: cell.code.slice(0, 500) || "Show its output", "data-state": state, onclick: () => this.on.show(cell) },
        h("span", { class: "dot", "aria-hidden": "true" }),
        h("span", { class: cell.foreign ? "row-title" : "row-title mono" }, title),
        h("span", { class: "row-sub" }, ...facts.flatMap((fact, i) => (i === 0 ? [fact] : [" ", h("span", { class: "fact" }, `· ${fact}`)]))),
      ),
      !cell.foreign &&
        h(
          "div",
          { class: "row-actions" },
          iconButton("edit", `Edit: ${title}`, () => this.on.edit(cell), "history-edit"),
          iconButton("rerun", `Run again: ${title}`, () => this.on.rerun(cell), "history-rerun"),
        ),
    );
  }
}

function outcomeText(cell: Cell): string {
  return cell.outcome === "failed" && cell.cause !== "" ? causeText(cell.cause).toLowerCase() : words[cell.outcome];
}

/**
 * Returns the line that identifies a piece of code: the first that is neither a comment nor an
 * import.
 */
function firstLine(code: string): string {
  const lines = code.split("\n").map((l) => l.trim()).filter((l) => l !== "");
  return (lines.find((l) => !/^(#|\/\/|import\b|from\b|interface\b|set -)/.test(l)) ?? lines[0] ?? "(empty)").slice(0, 120);
}
