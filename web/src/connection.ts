// Whether the server is reachable, and the banner that says when it is not.
import { announce, byId, h, iconButton } from "./dom.ts";
import { CallError, type Client } from "./mcp.ts";

const banner = byId("banner");
let shownKind = "";

/** Shows one error line above everything. */
export function showBanner(kind: "offline" | "busy" | "error", text: string, action?: { label: string; act: () => void }): void {
  shownKind = kind;
  banner.dataset["kind"] = kind;
  banner.replaceChildren(h("span", {}, text));
  if (action) banner.append(h("button", { type: "button", class: "button", onclick: action.act }, action.label));
  else banner.append(iconButton("close", "Dismiss", () => hideBanner()));
  banner.hidden = false;
}

export function hideBanner(kind?: string): void {
  if (kind && kind !== shownKind) return;
  banner.hidden = true;
  banner.replaceChildren();
  delete banner.dataset["kind"];
  shownKind = "";
}

interface Events {
  /** The server is reachable, for the first time or again. */
  online(): void;
  /** Files or runs have changed. */
  changed(): void;
  keyRefused(): void;
}

export class Connection {
  #wake: () => void = () => {};
  #stop = new AbortController();
  #isOnline = false;
  #failures = 0; // failed attempts since the last success
  #waiting: (() => void)[] = [];

  constructor(
    private readonly client: Client,
    private readonly hasKey: () => boolean,
    private readonly on: Events,
  ) {
    document.addEventListener("visibilitychange", () => this.reconnect());
    // An offline browser may still reach a server on its own machine, so only a request can tell.
    for (const name of ["online", "offline"]) {
      addEventListener(name, () => {
        this.#isOnline = false;
        this.#failures = 0;
        this.reconnect();
      });
    }
  }

  /** Whether the server is known to be unreachable. */
  get down(): boolean {
    return this.#failures > 0 || (!navigator.onLine && !this.#isOnline);
  }

  /** Shows that nothing can be run now. */
  refuse(): void {
    const text = "Not run: the server cannot be reached. Run it again when this message disappears.";
    this.#showOffline(text);
    announce(text);
    this.reconnect();
  }

  #showOffline(text: string): void {
    showBanner("offline", text, { label: "Try now", act: () => this.reconnect() });
  }

  /** Tries again at once because the key or the visibility has changed. */
  reconnect(): void {
    this.#stop.abort();
    this.#wake();
  }

  /** Never returns. A hidden page holds no connection: browsers allow few per server. */
  async watch(): Promise<never> {
    let lost = true;
    for (;;) {
      this.#stop = new AbortController();
      this.#isOnline = false;
      if (document.hidden || !this.hasKey()) {
        lost = true; // much may change before the page is visible again
        await this.#sleep(Infinity);
        continue;
      }
      try {
        await this.client.presence(
          this.#stop.signal,
          () => {
            this.#online(lost);
            lost = false;
          },
          () => this.on.changed(),
        );
        if (this.#stop.signal.aborted) continue;
        lost = true; // the server is stopping, or a proxy closed the stream
        await this.#sleep(200);
      } catch (err) {
        if (!(err instanceof CallError)) throw err;
        if (err.trouble === "aborted") continue;
        if (err.trouble === "key") {
          lost = true;
          this.on.keyRefused();
          await this.#sleep(Infinity);
          continue;
        }
        if (err.trouble !== "offline") {
          // The server is reachable but offers no stream: check again from time to time.
          this.#online(lost);
          lost = false;
          await this.#sleep(30_000);
          continue;
        }
        lost = true;
        const wait = Math.min(15_000, 500 * 2 ** this.#failures++);
        if (shownKind !== "offline") this.#showOffline("The server cannot be reached. Trying again…");
        await this.#sleep(wait);
      }
    }
  }

  #online(lost: boolean): void {
    this.#isOnline = true;
    this.#failures = 0;
    hideBanner("offline");
    for (const resolve of this.#waiting.splice(0)) resolve();
    if (lost) this.on.online();
  }

  /** Resolves when the server seems reachable, after a short pause at least. */
  async back(): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve, 500));
    if (this.#isOnline) return;
    await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }

  #sleep(ms: number): Promise<void> {
    if (this.#stop.signal.aborted) return Promise.resolve(); // resumed before it slept
    return new Promise((resolve) => {
      const timer = ms === Infinity ? undefined : setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
