// The conversation of the page: typed, chosen from the recent ones, or new.
import { ask, byId, h } from "./dom.ts";
import { age, bytes, visible } from "./format.ts";
import { CallError, type Client } from "./mcp.ts";
import { createMenu } from "./menu.ts";
import { fields, list, number, text } from "./shape.ts";
import { conversations } from "./store.ts";

interface Listed {
  id: string;
  used: number; // ms since 1970
  files: number;
  bytes: number;
  live: boolean;
}

/** The ids that the server accepts: printable characters without separators. */
export function idProblem(id: string): string {
  if (id === "") return "A conversation needs a name.";
  if (/[\s/\\\p{C}]/u.test(id)) return "The name of a conversation has no spaces, slashes or control characters.";
  if (id === "." || id === ".." || id.startsWith("~")) return "The name of a conversation is not a dot and does not begin with a tilde.";
  return new TextEncoder().encode(id).length > 128 ? "The name of a conversation has 128 characters at most." : "";
}

export function newId(): string {
  const day = new Date().toISOString().slice(5, 10);
  const random = [...crypto.getRandomValues(new Uint8Array(4))].map((b) => b.toString(16).padStart(2, "0")).join("");
  return `page-${day}-${random}`;
}

export class ConversationBar {
  id: string;
  #input = byId<HTMLInputElement>("session-input");

  constructor(
    private readonly client: Client,
    private readonly changed: (id: string) => void,
  ) {
    this.id = conversations.current() || newId();
    conversations.use(this.id);
    this.#input.value = this.id;
    this.#input.addEventListener("input", () => this.#input.setCustomValidity(""));
    // Only Enter opens what was typed: leaving the field does not leave the conversation.
    this.#input.addEventListener("blur", () => this.#reset());
    this.#input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.repeat) void this.#take();
      if (event.key === "Escape") this.#reset();
    });
    byId("session-new").addEventListener("click", () => this.use(newId()));
    const list = byId("session-list");
    const menu = createMenu(byId<HTMLButtonElement>("session-menu"), list, () => {
      this.#fill(list, menu.close, []);
      void this.#listed().then((listed) => {
        if (list.hidden) return;
        const at = list.contains(document.activeElement);
        this.#fill(list, menu.close, listed);
        if (at) list.querySelector<HTMLElement>("button")?.focus();
      });
    });
  }

  use(id: string): void {
    this.id = id;
    this.#reset();
    conversations.use(id);
    this.changed(id);
  }

  #reset(): void {
    this.#input.value = this.id;
    this.#input.setCustomValidity("");
  }

  async #take(): Promise<void> {
    const id = this.#input.value.trim();
    if (id === this.id) return;
    const problem = idProblem(id);
    this.#input.setCustomValidity(problem);
    if (problem) {
      this.#input.reportValidity();
      return;
    }
    if (await this.#exists(id)) return this.use(id);
    const detail = `There is no conversation ${visible(id)} yet. ${visible(this.id)} keeps its name, its files and its history.`;
    if (await ask("Start a new conversation?", detail, "Start it", "primary")) this.use(id);
    else this.#reset();
  }

  async #exists(id: string): Promise<boolean> {
    if (conversations.recent().includes(id)) return true;
    try {
      await this.client.call("list_artifacts", { session_id: id });
      return true;
    } catch (err) {
      if (err instanceof CallError) return false;
      throw err;
    }
  }

  async #listed(): Promise<Listed[]> {
    try {
      const { sessions } = await this.client.json("list_sessions", {});
      return list(sessions)
        .map(fields)
        .map((s) => ({ id: text(s["session_id"]), used: Date.parse(text(s["last_used"])) || 0, files: number(s["files"]) ?? 0, bytes: number(s["bytes"]) ?? 0, live: s["live"] === true }))
        .filter((s) => idProblem(s.id) === "");
    } catch (err) {
      if (err instanceof CallError) return []; // the browser's own list remains
      throw err;
    }
  }

  #fill(list: HTMLElement, close: () => void, listed: Listed[]): void {
    const known = new Map(listed.map((s) => [s.id, s]));
    const ids = [...new Set([...listed.map((s) => s.id), ...conversations.recent()])].slice(0, 50);
    list.replaceChildren(
      ...ids.map((id) => {
        const s = known.get(id);
        return h(
          "button",
          {
            type: "button", role: "menuitem", tabindex: -1, "data-testid": "session-item", "data-session": id, "aria-current": id === this.id ? "true" : null,
            onclick: () => {
              close();
              this.use(id);
            },
          },
          h("span", { class: "title" }, id),
          s?.live && h("span", { class: "live" }, "live"),
          h("span", { class: "about" }, s ? `${s.files} ${s.files === 1 ? "file" : "files"}, ${bytes(s.bytes)} · ${s.used ? age(s.used, Date.now()) : "long ago"}` : "used in this browser"),
        );
      }),
    );
  }
}
