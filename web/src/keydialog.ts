// Asks for the API key, and tries it before storing it.
import { byId, h } from "./dom.ts";
import { CallError, isKey, type Client } from "./mcp.ts";
import { key } from "./store.ts";

/**
 * Takes a key from the address (#token=…) and removes it from the address bar. Returns whether
 * there was one.
 */
export function keyFromAddress(): boolean {
  const params = new URLSearchParams(location.hash.slice(1));
  const token = params.get("token");
  if (token === null) return false;
  history.replaceState(null, "", location.pathname + location.search);
  if (token !== "") key.setForTab(token);
  return token !== "";
}

export class KeyDialog {
  #dialog: HTMLDialogElement | undefined;

  constructor(
    private readonly client: (token: string) => Client,
    private readonly accepted: () => void,
  ) {}

  open(problem = ""): void {
    if (this.#dialog) {
      if (problem) this.#say(problem);
      return;
    }
    const input = h("input", {
      id: "key-input", "data-testid": "key-input", class: "field", type: "password", required: true, autocomplete: "off", spellcheck: "false", "aria-describedby": "key-error",
    });
    const remember = h("input", { type: "checkbox", "data-testid": "key-remember" });
    remember.checked = key.remembered();
    const save = h("button", { type: "submit", class: "button primary", "data-testid": "key-save" }, "Continue");
    const dialog = h(
      "dialog",
      { class: "dialog small", "aria-labelledby": "key-title", "data-testid": "key-dialog" },
      h(
        "form",
        {
          novalidate: true,
          onsubmit: (event: Event) => {
            event.preventDefault();
            void this.#try(input, remember.checked, save);
          },
        },
        h("div", {}, h("h2", { id: "key-title" }, "Enter the API key"), h("p", { class: "muted" }, "The server printed it when it started, or its operator set it as ", h("code", {}, "MCP_API_TOKEN"), ".")),
        h("div", { class: "stack" }, h("label", { for: "key-input" }, "API key"), input, h("p", { id: "key-error", class: "problem", role: "alert", "data-testid": "key-error", hidden: true })),
        h("label", { class: "check" }, remember, "Remember on this device"),
        h("div", { class: "actions" }, save),
      ),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      this.#dialog = undefined;
    });
    this.#dialog = dialog;
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
    if (problem) this.#say(problem);
  }

  close(): void {
    this.#dialog?.close();
  }

  #say(problem: string): void {
    const error = byId("key-error");
    error.textContent = problem;
    error.hidden = problem === "";
  }

  async #try(input: HTMLInputElement, remember: boolean, save: HTMLButtonElement): Promise<void> {
    const token = input.value.trim();
    if (token === "") return this.#say("Paste the key first.");
    if (!isKey(token)) return this.#say("A key has no spaces and no special characters.");
    save.disabled = true;
    try {
      await this.client(token).tools();
    } catch (err) {
      this.#say(err instanceof CallError && err.trouble === "key" ? "The server does not accept this key. Check that all of it was copied." : String((err as Error).message));
      input.select();
      return;
    } finally {
      save.disabled = false;
    }
    key.set(token, remember);
    this.#dialog?.close();
    this.accepted();
  }
}
