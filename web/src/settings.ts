// What goes with every run: environment variables, network, time limit, services.
import { byId, closeOnBackdrop, h, iconButton } from "./dom.ts";
import type { Client } from "./mcp.ts";
import { environment, key, runSettings } from "./store.ts";

export interface Limits {
  maxTimeout: number | undefined; // seconds
  services: boolean; // the server has a list of them
}

interface Service {
  name: string;
  display_name?: string;
  connected: boolean;
  connect_url?: string;
}

interface Events {
  forgetKey(): void;
  trouble(err: unknown): void;
}

export class Settings {
  limits: Limits = { maxTimeout: undefined, services: false };

  constructor(
    private readonly client: Client,
    private readonly on: Events,
  ) {
    byId("settings-open").addEventListener("click", () => this.open());
    this.#note();
  }

  /** Variables with a name, the last of a name winning. */
  get environment(): Record<string, string> {
    return Object.fromEntries(environment.get().filter(([name]) => name !== ""));
  }

  get network(): boolean {
    return runSettings.get().network ?? false;
  }

  set network(value: boolean) {
    runSettings.set({ network: value });
    this.#note();
  }

  /** Seconds, undefined for the server's own limit. */
  get timeout(): number | undefined {
    const t = runSettings.get().timeout;
    if (t === undefined || t < 1) return undefined;
    return this.limits.maxTimeout ? Math.min(t, this.limits.maxTimeout) : t;
  }

  /** On the button: how many settings differ from the usual. */
  #note(): void {
    const n = Object.keys(this.environment).length + Number(this.network) + Number(this.timeout !== undefined);
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
        class: "field", value: name, placeholder: "NAME", "aria-label": "Name of the variable", spellcheck: "false", autocapitalize: "off", autocomplete: "off", pattern: "[A-Za-z_][A-Za-z0-9_]*", "data-testid": "env-name", oninput: save,
      });
      const second = h("input", { class: "field", value, placeholder: "value", "aria-label": "Value of the variable", spellcheck: "false", autocapitalize: "off", autocomplete: "off", "data-testid": "env-value", oninput: save });
      const row = h("div", { class: "env-row" }, first, second, iconButton("close", "Remove the variable", () => (row.remove(), save()), "env-remove"));
      rows.append(row);
      return first;
    };
    vars.forEach(([name, value]) => add(name, value));

    const network = h("input", { type: "checkbox", role: "switch", "data-testid": "network-switch", "aria-describedby": "network-about", onchange: () => (this.network = network.checked) });
    network.checked = this.network;
    const timeout = h("input", {
      id: "timeout-input", class: "field", type: "number", min: 1, max: this.limits.maxTimeout ?? null, step: 1, value: this.timeout ?? "", placeholder: "default", "data-testid": "timeout-input", "aria-describedby": "timeout-about",
      oninput: () => {
        runSettings.set({ timeout: timeout.value === "" ? 0 : Number(timeout.value) });
        this.#note();
      },
    });
    const services = h("section", { "data-testid": "services", hidden: true });
    const dialog = h(
      "dialog",
      { class: "dialog sheet", "aria-labelledby": "settings-title", "data-testid": "settings-drawer" },
      h(
        "header",
        {},
        h("div", {}, h("h2", { id: "settings-title" }, "Settings"), h("p", { class: "muted" }, "They go with every run from this page.")),
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
        h("p", { class: "muted", id: "timeout-about" }, this.limits.maxTimeout ? `At most ${this.limits.maxTimeout}. Empty: the server's own limit.` : "Empty: the server's own limit."),
      ),
      h(
        "section",
        {},
        h("h3", { class: "legend" }, "Environment variables"),
        h("p", { class: "muted" }, "Kept in this tab only. An interpreter that keeps variables gets them when it starts."),
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
    dialog.addEventListener("close", () => dialog.remove());
    closeOnBackdrop(dialog);
    document.body.append(dialog);
    dialog.showModal();
    if (this.limits.services) void this.#services(services);
  }

  async #services(section: HTMLElement): Promise<void> {
    try {
      const { services } = await this.client.json<{ services: Service[] }>("list_services", {});
      if (services.length === 0) return;
      section.replaceChildren(h("h3", { class: "legend" }, "Services"), ...services.map(serviceRow));
      section.hidden = false;
    } catch (err) {
      this.on.trouble(err);
    }
  }
}

function serviceRow(s: Service): HTMLElement {
  return h(
    "div",
    { class: "service", "data-state": s.connected ? "ok" : "idle" },
    h("span", { class: "dot", "aria-hidden": "true" }),
    h("span", { class: "name" }, s.display_name || s.name),
    s.connected
      ? h("span", { class: "muted" }, "Connected")
      : s.connect_url && /^https?:$/.test(new URL(s.connect_url, location.href).protocol)
        ? h("a", { class: "button", href: s.connect_url, target: "_blank", rel: "noopener" }, "Connect")
        : h("span", { class: "muted" }, "Not connected"),
  );
}
