// The runs of a conversation: what ran, how it ended; any of them can be shown, edited or run again.
import { byId, h, iconButton, keepFocus } from "./dom.ts";
import { age, duration } from "./format.ts";
import { cells, type Cell } from "./store.ts";

interface Events {
  show(cell: Cell): void;
  edit(cell: Cell): void;
  rerun(cell: Cell): void;
}

export class HistoryPane {
  #conversation = "";
  #cells: Cell[] = [];
  #current = 0;
  #list = byId("history-list");

  constructor(private readonly on: Events) {
    byId("history-clear").addEventListener("click", () => {
      this.#cells = [];
      this.#save();
    });
    setInterval(() => this.#render(), 30_000);
  }

  load(conversation: string): void {
    this.#conversation = conversation;
    this.#cells = cells.get(conversation);
    this.#current = 0;
    this.#render();
  }

  /** Adds a run and gives it a number. Its conversation may be one that is no longer shown. */
  add(conversation: string, run: Omit<Cell, "id">): Cell {
    const here = conversation === this.#conversation;
    const earlier = here ? this.#cells : cells.get(conversation);
    const cell = { id: (earlier.at(-1)?.id ?? 0) + 1, ...run };
    if (here) {
      this.#cells = [...earlier, cell];
      this.#current = cell.id;
      this.#save();
    } else {
      cells.set(conversation, [...earlier, cell]);
    }
    return cell;
  }

  mark(id: number): void {
    this.#current = id;
    this.#render();
  }

  #save(): void {
    cells.set(this.#conversation, this.#cells);
    this.#cells = this.#cells.slice(-50);
    this.#render();
  }

  #render(): void {
    byId("history-empty").hidden = this.#cells.length > 0;
    byId("history-clear").hidden = this.#cells.length === 0;
    keepFocus(this.#list, "cell", () => this.#list.replaceChildren(...this.#cells.toReversed().map((cell) => this.#row(cell))));
  }

  #row(cell: Cell): HTMLElement {
    const title = firstLine(cell.code);
    const outcome = { ok: "done", failed: "failed", stopped: "stopped", error: "not run" }[cell.outcome];
    return h(
      "li",
      { class: "row", "data-testid": "history-item", "data-cell": cell.id, "data-outcome": cell.outcome, "aria-current": cell.id === this.#current ? "true" : null },
      h(
        "button",
        { type: "button", class: "row-main", title: cell.code.slice(0, 500), "data-state": cell.outcome, onclick: () => this.on.show(cell) },
        h("span", { class: "dot", "aria-hidden": "true" }),
        h("span", { class: "row-title mono" }, title),
        h("span", { class: "row-sub" }, `${cell.language} · ${outcome} · ${duration(cell.duration)} · ${age(cell.at, Date.now())}`),
      ),
      h(
        "div",
        { class: "row-actions" },
        iconButton("edit", `Edit: ${title}`, () => this.on.edit(cell), "history-edit"),
        iconButton("rerun", `Run again: ${title}`, () => this.on.rerun(cell), "history-rerun"),
      ),
    );
  }
}

/** The line that tells a piece of code apart: the first that is no comment and no import. */
function firstLine(code: string): string {
  const lines = code.split("\n").map((l) => l.trim()).filter((l) => l !== "");
  return (lines.find((l) => !/^(#|\/\/|import\b|from\b|interface\b|set -)/.test(l)) ?? lines[0] ?? "(empty)").slice(0, 120);
}
