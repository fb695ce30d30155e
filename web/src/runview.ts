// One run on screen: its live output, what it showed, how it ended.
import { h } from "./dom.ts";
import { bytes, causeText, duration, sentence } from "./format.ts";
import { frameDocument } from "./html.ts";
import type { Stream } from "./lines.ts";
import { LogView } from "./logview.ts";
import { CallError, textOf, type ToolResult } from "./mcp.ts";
import { fields, list, number, text } from "./shape.ts";
import { renderTable, tableOfHTML } from "./tables.ts";

export type State = "idle" | "running" | "ok" | "failed" | "stopped" | "error" | "lost";

export interface Status {
  state: State;
  title: string;
  facts: string[];
  exitCode?: number | undefined;
  cause?: string;
}

interface Display {
  mime: string;
  text: string;
  plain: string; // the printed text; empty if it was not printed
}

/** How a run ended, as far as the server says. */
interface Details {
  exitCode: number | undefined;
  signal: number;
  cause: string;
  hint: string;
  state: string;
  duration: number | undefined; // ms
  memory: number;
  stdout: string;
  stderr: string;
  truncated: boolean;
  displays: Display[];
}

export const detailsKey = "mcp-code-sandbox/run";
const stderrKey = "mcp-code-sandbox/stderr";
const missedKey = "mcp-code-sandbox/missed";

const frameCSS = `
:root { color-scheme: light dark; font: 13px/1.5 system-ui, sans-serif; }
body { margin: 12px; color: CanvasText; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 10px; border-bottom: 1px solid color-mix(in srgb, CanvasText 18%, transparent); text-align: left; }
pre, code { font-family: ui-monospace, monospace; }
`;

export class RunView {
  readonly element = h("div", { class: "run" });
  readonly log: LogView;
  status: Status = { state: "running", title: "Running", facts: [] };
  elapsed = 0;
  #streamed = false;
  #tables = 0;
  #missed = 0; // bytes of output that are not shown
  #displayed: HTMLElement | undefined; // the first element below the text

  constructor(
    private readonly scroller: HTMLElement,
    private readonly nonce: string,
  ) {
    this.log = new LogView(scroller);
    this.element.append(this.log.element);
  }

  /**
   * Adds a piece of output. meta says which ranges are standard error, and how much is missing
   * after it.
   */
  progress(piece: string, meta: Record<string, unknown>): void {
    this.#take(piece, list(meta[stderrKey]));
    this.#gap(number(meta[missedKey]));
  }

  /** Adds new output of a followed run. Some may be missing before it. */
  follow(part: Record<string, unknown>): void {
    this.#gap(number(part["output_missed_bytes"]));
    this.#take(text(part["output"]), list(part["output_stderr"]));
  }

  #gap(missed = 0): void {
    if (missed <= 0) return;
    this.#missed += missed;
    this.log.gap(missed);
  }

  #take(piece: string, stderr: unknown[]): void {
    if (piece !== "") this.#streamed = true;
    let at = 0;
    const take = (stream: Stream, end: unknown) => {
      const to = Math.min(number(end) ?? at, piece.length);
      if (to > at) this.log.add(stream, piece.slice(at, to));
      at = Math.max(at, to);
    };
    for (const range of stderr) {
      const [from, to] = list(range);
      take("stdout", from);
      take("stderr", to);
    }
    take("stdout", piece.length);
  }

  finish(result: ToolResult, elapsed: number): void {
    const details = detailsOf(result);
    const whole = this.#streamed; // all output has arrived, except what was reported missing
    if (!whole) {
      this.log.add("stdout", details.stdout);
      this.log.add("stderr", details.stderr);
    }
    this.log.flush();
    const follows = this.log.atEnd && this.element.isConnected;
    const scrolled = this.scroller.scrollTop > 0;
    this.#display(details.displays);
    for (const content of result.content) {
      if (content.type === "image" && /^image\/(png|jpeg|gif|webp)$/.test(content.mimeType)) this.#append(picture(`data:${content.mimeType};base64,${content.data}`));
    }
    if (this.#isEmpty() && details.cause === "") this.#notice("No output.", "");
    if (this.#missed > 0) this.#notice(`${this.#missed.toLocaleString("en")} bytes of output are left out above: more was printed than is kept. To keep all of it, write it to a file in /data.`, "");
    else if (!whole && details.truncated) this.#notice("The middle of the output is left out above: more was printed than is kept. To keep all of it, write it to a file in /data.", "");
    if (details.state) this.#notice(sentence(details.state), "");
    if (details.hint && details.cause !== "cancelled") this.#notice(details.hint, details.cause || details.exitCode !== 0 ? "bad" : "");
    this.elapsed = details.duration ?? elapsed;
    this.status = statusOf(details, this.elapsed);
    if (!follows) return;
    if (this.#displayed) void this.reveal();
    else if (scrolled || this.element.lastElementChild?.matches(".notice")) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  /** Scrolls a plot or another display into view once its size is known. */
  async reveal(): Promise<void> {
    const shown = this.#displayed;
    if (!shown?.isConnected) return;
    const before = this.scroller.scrollTop;
    await Promise.all([...shown.querySelectorAll("img")].map((img) => img.decode().catch(() => {})));
    if (Math.abs(this.scroller.scrollTop - before) >= 2) return; // the person has scrolled meanwhile
    if (!document.activeElement?.closest(".cm-editor")) return shown.scrollIntoView({ block: "nearest" });
    // Only the output scrolls: the page must not move while the person types.
    const [box, view] = [shown.getBoundingClientRect(), this.scroller.getBoundingClientRect()];
    this.scroller.scrollTop += Math.max(0, Math.min(box.bottom - view.bottom, box.top - view.top));
  }

  /** The server could not report the end of the run. */
  fail(err: CallError): void {
    if (err.trouble === "aborted") {
      this.status = { state: "stopped", title: "Stopped", facts: [], cause: "cancelled" };
      return;
    }
    this.status = { state: "error", title: err.trouble === "busy" ? "Busy" : "Not run", facts: [], cause: err.code };
    if (err.trouble === "offline") this.status.title = "Connection lost";
    this.#notice(err.message, "bad");
  }

  /** The end of the run is unknown. */
  lose(why: string): void {
    this.status = { state: "lost", title: "Result gone", facts: [] };
    this.#notice(why, "bad");
  }

  #isEmpty(): boolean {
    return this.log.lines.all.length === 0 && this.element.childElementCount === 1;
  }

  #append(element: HTMLElement): void {
    const figure = h("figure", { class: "shown" }, element);
    this.#displayed ??= figure;
    this.element.append(figure);
  }

  /**
   * Shows tables in place of their printed text, and everything else below the output. Displays
   * come in the order in which they were printed.
   */
  #display(displays: Display[]): void {
    const shown = displays.flatMap((display) => this.#elementOf(display) ?? []);
    const left = this.log.replace(shown.filter(({ plain }) => plain !== ""));
    for (const { plain, element } of shown) if (plain === "" || left.has(element)) this.#append(element);
  }

  /**
   * Returns the element of a display, and the text that it replaces, if any. Undefined if there is
   * nothing to show.
   */
  #elementOf({ mime, text, plain }: Display): { plain: string; element: HTMLElement } | undefined {
    if (mime === "text/html") {
      const table = tableOfHTML(text);
      if (!table) return { plain: "", element: this.#frame(text) };
      if (plain !== "" && table.body.flat().length === 0) return undefined; // the printed text says more
      return { plain, element: renderTable(table, `Table ${++this.#tables}`) };
    }
    // As an image, an SVG runs nothing and loads nothing.
    if (mime === "image/svg+xml") return { plain: "", element: picture(`data:image/svg+xml,${encodeURIComponent(text)}`) };
    return mime.startsWith("text/") ? { plain: "", element: h("div", { class: "log-line" }, text) } : undefined;
  }

  #frame(html: string): HTMLElement {
    const frame = h("iframe", { sandbox: "", title: "HTML that the code showed", "data-testid": "output-html", loading: "lazy" });
    frame.srcdoc = frameDocument(html, frameCSS, this.nonce);
    // A frame without rights cannot report its height.
    const rows = (html.match(/<(tr|p|li|h[1-6]|pre|div|br)\b/gi) ?? []).length;
    frame.style.height = `${Math.min(420, 60 + rows * 28)}px`;
    return frame;
  }

  #notice(text: string, kind: string): void {
    const first = this.#isEmpty() ? "first" : "";
    this.element.append(h("p", { class: `notice ${kind} ${first}` }, text));
  }
}

function picture(url: string): HTMLElement {
  return h("img", { src: url, alt: "Image that the code showed", "data-testid": "output-image" });
}

/**
 * Reads what a result says about a run: everything from its details, or less if the server or a
 * proxy sends none.
 */
function detailsOf(result: ToolResult): Details {
  const told = fields(result.meta[detailsKey]);
  const said = textOf(result);
  // Without details there is the JSON of contract 1, or the plain output.
  const d = number(told["exit_code"]) !== undefined ? told : fields(result.structured ?? parsedOrNone(said));
  return {
    exitCode: number(d["exit_code"]) ?? (d["success"] === false ? 1 : undefined),
    signal: number(d["signal"]) ?? 0,
    cause: text(d["cause"]),
    hint: text(d["hint"]),
    state: text(d["state"]),
    duration: number(d["duration_ms"]),
    memory: number(d["memory_bytes"]) ?? 0,
    stdout: d === told ? text(d["stdout"]) : text(d["output"], said),
    stderr: text(d["stderr"]),
    truncated: d["stdout_truncated"] === true || d["stderr_truncated"] === true,
    displays: list(d["displays"]).map(fields).map((shown) => ({ mime: text(shown["mime_type"]), text: text(shown["text"]), plain: text(shown["plain"]) })),
  };
}

function parsedOrNone(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    return undefined;
  }
}

function statusOf(d: Details, elapsed: number): Status {
  const facts = [duration(elapsed), ...(d.memory > 0 ? [bytes(d.memory)] : [])];
  const base = { exitCode: d.exitCode, cause: d.cause };
  if (d.cause) return { ...base, state: d.cause === "cancelled" ? "stopped" : "failed", title: causeText(d.cause), facts };
  if (d.exitCode === undefined) return { ...base, state: "ok", title: "Ended", facts }; // the output may say how
  const how = d.signal ? `signal ${d.signal}` : `exit code ${d.exitCode}`;
  if (d.exitCode !== 0 || d.signal) return { ...base, state: "failed", title: "Failed", facts: [how, ...facts] };
  return { ...base, state: "ok", title: "Done", facts: [how, ...facts] };
}
