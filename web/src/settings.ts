// Settings of every run: environment variables, network, time limit, services.
import { byId, closeOnBackdrop, h, iconButton } from "./dom.ts";
import { visible } from "./format.ts";
import type { Client } from "./mcp.ts";
import { address, fields, list, text } from "./shape.ts";
import { environment, key, runSettings } from "./store.ts";

export interface Limits {
  maxTimeout: number | undefined; // seconds
  services: boolean; // whether the server lists services
  keptEnvironment: boolean; // whether persistent interpreters accept environment variables
}

interface Service {
  name: string;
  title: string;
  connected: boolean;
  address: string; // where a person connects it; may be empty
}

interface Events {
  forgetKey(): void;
  trouble(err: unknown): void;
}

export class Settings {
  #section: HTMLElement | undefined; // of the services, while the drawer is open
  #rows = 0; // number of variables, for unique ids

  limits: Limits = { maxTimeout: undefined, services: false, keptEnvironment: true };

  constructor(
    private readonly client: Client,
    private readonly on: Events,
  ) {
    byId("settings-open").addEventListener("click", () => this.open());
    this.#note();
  }

  /** Returns the variables whose names the server accepts. The last one of a name wins. */
  get environment(): Record<string, string> {
    return Object.fromEntries(environment.get().filter(([name, value]) => name !== "" && variableProblem(name, value) === ""));
  }

  get network(): boolean {
    return runSettings.get().network ?? false;
  }

  set network(value: boolean) {
    runSettings.set({ network: value });
    this.#note();
  }

  /** Returns seconds, or undefined for the server's own limit. */
  get timeout(): number | undefined {
    const t = runSettings.get().timeout;
    return t && timeoutProblem(String(t), this.limits.maxTimeout) === "" ? t : undefined;
  }

  /** Returns the names of the services that runs may call. */
  get services(): string[] {
    return this.limits.services ? (runSettings.get().services ?? []) : [];
  }

  /** Shows on the button how many settings differ from the defaults. */
  #note(): void {
    const n = Object.keys(this.environment).length + Number(this.network) + Number(this.timeout !== undefined) + this.services.length;
    const note = byId("settings-note");
    note.hidden = n === 0;
    note.textContent = String(n);
    note.title = `${n} ${n === 1 ? "setting differs" : "settings differ"} from the usual`;
  }

  open(): void {
    const vars = environment.get();
    const rows = h("div");
    const save = () => {
      environment.set(
        [...rows.children].map((row) => {
          const [name, value] = row.querySelectorAll("input");
          return [name!.value.trim(), value!.value];
        }),
      );
      this.#note();
    };
    const add = (name = "", value = "") => {
      const first = h("input", {
        class: "field", value: name, placeholder: "NAME", "aria-label": "Name of the variable", spellcheck: "false", autocapitalize: "off", autocomplete: "off", "data-testid": "env-name", oninput: () => (check(), save()),
      });
      const second = h("input", { class: "field", value, placeholder: "value", "aria-label": "Value of the variable", spellcheck: "false", autocapitalize: "off", autocomplete: "off", "data-testid": "env-value", oninput: () => (check(), save()) });
      const problem = h("p", { class: "problem", id: `env-problem-${++this.#rows}`, role: "status", "data-testid": "env-problem", hidden: true });
      first.setAttribute("aria-describedby", problem.id);
      const check = () => {
        const why = variableProblem(first.value.trim(), second.value);
        problem.textContent = why;
        problem.hidden = why === "";
        first.setAttribute("aria-invalid", String(why !== ""));
      };
      check();
      const row = h("div", { class: "env-row" }, first, second, iconButton("close", "Remove the variable", () => (row.remove(), save()), "env-remove"), problem);
      rows.append(row);
      return first;
    };
    vars.forEach(([name, value]) => add(name, value));

    const network = h("input", { type: "checkbox", role: "switch", "data-testid": "network-switch", "aria-describedby": "network-about", onchange: () => (this.network = network.checked) });
    network.checked = this.network;
    const timeout = h("input", {
      id: "timeout-input", class: "field", type: "number", min: 1, max: this.limits.maxTimeout ?? null, step: 1, value: this.timeout ?? "", placeholder: "default", "data-testid": "timeout-input", "aria-describedby": "timeout-about timeout-problem",
      oninput: () => {
        // Invalid input has no value.
        const why = timeout.validity.badInput ? timeoutProblem("?", this.limits.maxTimeout) : timeoutProblem(timeout.value, this.limits.maxTimeout);
        problem.textContent = why;
        problem.hidden = why === "";
        timeout.setAttribute("aria-invalid", String(why !== ""));
        runSettings.set({ timeout: why === "" ? Number(timeout.value) : 0 });
        this.#note();
      },
    });
    const problem = h("p", { class: "problem", id: "timeout-problem", role: "status", "data-testid": "timeout-problem", hidden: true });
    const services = h("section", { "data-testid": "services", hidden: true });
    const dialog = h(
      "dialog",
      { class: "dialog sheet", "aria-labelledby": "settings-title", "data-testid": "settings-drawer" },
      h(
        "header",
        {},
        h("div", {}, h("h2", { id: "settings-title" }, "Settings"), h("p", { class: "muted" }, "They apply to every run from this page.")),
        iconButton("close", "Close", () => dialog.close(), "settings-close"),
      ),
      h(
        "section",
        {},
        h("label", { class: "switch" }, "Network access", network, h("span", { class: "track", "aria-hidden": "true" })),
        h("p", { class: "muted", id: "network-about" }, "Lets the code reach the internet. Private and host addresses stay out of reach."),
      ),
      h(
        "section",
        {},
        h("div", { class: "row-line" }, h("label", { class: "legend", for: "timeout-input" }, "Time limit in seconds"), timeout),
        problem,
        h("p", { class: "muted", id: "timeout-about" }, this.limits.maxTimeout ? `At most ${this.limits.maxTimeout}. Empty: the server's own limit.` : "Empty: the server's own limit."),
      ),
      h(
        "section",
        {},
        h("h3", { class: "legend" }, "Environment variables"),
        h("p", { class: "muted" }, this.limits.keptEnvironment ? "Kept in this tab only." : "Kept in this tab only. Runs that keep variables do not get them."),
        rows,
        h("button", { type: "button", class: "button", "data-testid": "env-add", onclick: () => add().focus() }, "Add a variable"),
      ),
      services,
      h(
        "section",
        {},
        h("h3", { class: "legend" }, "API key"),
        h("p", { class: "muted" }, key.remembered() ? "Remembered on this device." : "Kept in this tab only."),
        h(
          "button",
          {
            type: "button", class: "button", "data-testid": "key-forget",
            onclick: () => {
              dialog.close();
              this.on.forgetKey();
            },
          },
          "Forget the key",
        ),
      ),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      this.#section = undefined;
    });
    closeOnBackdrop(dialog);
    document.body.append(dialog);
    dialog.showModal();
    this.#section = services;
    void this.refreshServices();
  }

  /** Fetches the services again: one may have been connected or removed since. */
  async refreshServices(): Promise<void> {
    if (!this.limits.services || (!this.#section && this.services.length === 0)) return;
    let services: Service[];
    try {
      services = list((await this.client.json("list_services", {}))["services"]).map(serviceOf).filter((s) => s.name !== "");
    } catch (err) {
      return this.on.trouble(err);
    }
    // The server would refuse every run with a service that is not connected.
    this.#use((name) => services.some((s) => s.name === name && s.connected));
    if (!this.#section || services.length === 0) return;
    const focused = this.#section.contains(document.activeElement) ? document.activeElement?.closest<HTMLElement>("[data-service]")?.dataset["service"] : undefined;
    this.#section.replaceChildren(
      h("h3", { class: "legend" }, "Services"),
      h("p", { class: "muted" }, "The code may call those that are on, with your credentials, which it never sees. It needs no network access for that."),
      ...services.map((s) => this.#service(s)),
    );
    this.#section.hidden = false;
    if (focused !== undefined) this.#section.querySelector<HTMLElement>(`[data-service="${CSS.escape(focused)}"] :is(input, a)`)?.focus();
  }

  #use(keep: (name: string) => boolean, more: string[] = []): void {
    runSettings.set({ services: [...new Set([...this.services, ...more])].filter(keep) });
    this.#note();
  }

  #service(s: Service): HTMLElement {
    const about = { "data-testid": "service", "data-service": s.name, "data-connected": String(s.connected) };
    if (!s.connected) {
      return h(
        "div",
        { class: "service", ...about },
        h("span", { class: "name" }, s.title, h("span", { class: "muted" }, "Not connected")),
        s.address !== "" && h("a", { class: "button", href: s.address, target: "_blank", rel: "noopener", "aria-label": `Connect ${s.title}` }, "Connect"),
      );
    }
    const on = h("input", { type: "checkbox", role: "switch", onchange: () => (on.checked ? this.#use(() => true, [s.name]) : this.#use((name) => name !== s.name)) });
    on.checked = this.services.includes(s.name);
    return h("label", { class: "switch service", ...about }, h("span", { class: "name" }, s.title), on, h("span", { class: "track", "aria-hidden": "true" }));
  }
}

/** Returns what is wrong with a time limit, or an empty text. */
export function timeoutProblem(seconds: string, most: number | undefined): string {
  if (seconds === "") return "";
  const fits = /^\d+$/.test(seconds) && Number(seconds) >= 1 && Number(seconds) <= (most ?? Infinity);
  return fits ? "" : `Use a whole number of seconds, ${most === undefined ? "1 or more" : `from 1 to ${most}`}. This limit is not used.`;
}

/** Returns why the server would refuse a variable, and with it every run, or an empty text. */
export function variableProblem(name: string, value: string): string {
  if (name === "") return value === "" ? "" : "This variable needs a name. It is not sent.";
  if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) return "A name has letters, digits and underscores, and does not begin with a digit. This variable is not sent.";
  return value.includes("\0") ? "The value contains a NUL character. This variable is not sent." : "";
}

function serviceOf(value: unknown): Service {
  const s = fields(value);
  const name = text(s["name"]);
  const place = address(s["connect_url"]);
  return {
    name,
    title: visible(text(s["display_name"]) || name),
    connected: s["connected"] === true,
    address: place && /^https?:$/.test(place.protocol) ? place.href : "",
  };
}
