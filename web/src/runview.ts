// One run on screen: its live output, what it showed, how it ended.
import { h } from "./dom.ts";
import { bytes, causeText, duration, sentence } from "./format.ts";
import { Lines, type Stream } from "./lines.ts";
import { LogView } from "./logview.ts";
import { CallError, textOf, type ToolResult } from "./mcp.ts";
import { isPrinted, partsOf, type Part, type Piece } from "./parts.ts";
import { fields, fileAddress, list, number, text } from "./shape.ts";
import { applyThemeTo, Showing, type Display } from "./shown.ts";

export type State = "idle" | "running" | "ok" | "failed" | "stopped" | "error" | "lost";

export interface Status {
  state: State;
  title: string;
  facts: string[];
  exitCode?: number | undefined;
  cause?: string;
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
  outputs: Piece[]; // all of it, in order
  outputURL: string; // of the whole output, if outputs is not all of it
}

export const detailsKey = "mcp-code-sandbox/run";
const stderrKey = "mcp-code-sandbox/stderr";
const missedKey = "mcp-code-sandbox/missed";

export class RunView {
  readonly element = h("div", { class: "run" });
  status: Status = { state: "running", title: "Running", facts: [] };
  elapsed = 0;
  #log: LogView; // of the output as it arrives
  #logs: LogView[]; // all that are on screen
  #parts: Part<HTMLElement>[]; // what is on screen
  #attached = false;
  #streamed = false;
  #missed = 0; // bytes of output that are not shown
  #last: HTMLElement | undefined; // the first one of the elements after the last line of text

  constructor(
    private readonly scroller: HTMLElement,
    private readonly nonce: string,
  ) {
    this.#log = new LogView(scroller);
    this.#logs = [this.#log];
    this.#parts = [this.#log.lines];
    this.element.append(this.#log.element);
  }

  /** Follows the scroller once the element is in it. */
  attach(): void {
    this.#attached = true;
    applyThemeTo(this.element);
    for (const log of this.#logs) log.attach();
  }

  detach(): void {
    this.#attached = false;
    for (const log of this.#logs) log.detach();
  }

  /** Returns the text to copy. */
  get text(): string {
    return this.#parts.map((part) => (part instanceof Lines ? part.text() : part.plain.replace(/\n$/, ""))).filter((t) => t !== "").join("\n");
  }

  get lineCount(): number {
    return this.#parts.reduce((n, part) => n + (part instanceof Lines ? part.all.length : 0), 0);
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
    this.#log.gap(missed);
  }

  #take(piece: string, stderr: unknown[]): void {
    if (piece !== "") this.#streamed = true;
    let at = 0;
    const take = (stream: Stream, end: unknown) => {
      const to = Math.min(number(end) ?? at, piece.length);
      if (to > at) this.#log.add(stream, piece.slice(at, to));
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
    this.#log.flush();
    const follows = this.#log.atEnd;
    const top = this.scroller.scrollTop;
    this.#draw(details, imagesOf(result));
    if (this.#isEmpty() && details.cause === "") this.#notice("", "No output.");
    if (this.#missed > 0) this.#noticeMissing(`${this.#missed.toLocaleString("en")} bytes of output are`, details.outputURL);
    else if (details.truncated && details.outputs.length === 0 && !this.#streamed) this.#noticeMissing("The middle of the output is", "");
    if (details.state) this.#notice("", sentence(details.state));
    if (details.hint && details.cause !== "cancelled") this.#notice(details.cause || details.exitCode !== 0 ? "bad" : "", details.hint);
    this.elapsed = details.duration ?? elapsed;
    this.status = statusOf(details, this.elapsed);
    if (!this.element.isConnected) return;
    this.scroller.scrollTop = top;
    if (!follows) return;
    if (this.#last) void this.reveal();
    else if (top > 0 || this.element.lastElementChild?.matches(".notice")) void this.#whenStill(() => (this.scroller.scrollTop = this.scroller.scrollHeight));
  }

  /**
   * Draws the run as the server keeps it. If it only printed text, what is on screen stays, unless
   * the server has much more.
   */
  #draw(details: Details, images: string[]): void {
    const { displays, outputs } = details;
    if (outputs.length === 0) return this.#drawWithoutOrder(details, images);
    const omitted = outputs.reduce((sum, piece) => sum + piece.omitted, 0);
    if (this.#streamed && this.#missed <= omitted / 2 && outputs.every(isPrinted)) return;
    this.#missed = omitted;
    const showing = new Showing(displays, images, this.nonce);
    this.#lay(partsOf(outputs, (piece) => showing.of(piece)));
  }

  /** Draws a run of which the server, or a proxy, does not tell the order. */
  #drawWithoutOrder({ displays, stdout, stderr }: Details, images: string[]): void {
    if (!this.#streamed) {
      this.#log.add("stdout", stdout);
      this.#log.add("stderr", stderr);
    }
    const showing = new Showing(displays, images, this.nonce);
    const piece = (type: string, index: number): Piece => ({ type, index, text: "", omitted: 0, file: "", url: "" });
    const shown = [...displays.map((_, i) => piece("display", i)), ...images.map((_, i) => piece("image", i))].flatMap((p) => showing.of(p) ?? []);
    this.#lay([...(this.#log.lines.all.length > 0 ? [this.#log.lines] : []), ...shown]);
  }

  #lay(parts: Part<HTMLElement>[]): void {
    const attached = this.#attached;
    this.detach();
    this.#parts = parts;
    this.#logs = [];
    this.#last = undefined;
    const elements = parts.map((part) => {
      if (part instanceof Lines) {
        const log = new LogView(this.scroller, part);
        this.#logs.push(log);
        this.#last = undefined;
        return log.element;
      }
      const figure = h("figure", { class: "shown" }, part.element);
      this.#last ??= figure;
      return figure;
    });
    this.element.replaceChildren(...elements);
    if (attached) this.attach();
    else for (const log of this.#logs) log.flush();
  }

  /** Scrolls what the run showed last into view. */
  async reveal(): Promise<void> {
    const last = this.#last;
    if (!last) return;
    await this.#whenStill(() => {
      if (!document.activeElement?.closest(".cm-editor")) return last.scrollIntoView({ block: "nearest" });
      // Only the output scrolls: the page must not move while the person types.
      const [box, view] = [last.getBoundingClientRect(), this.scroller.getBoundingClientRect()];
      this.scroller.scrollTop += Math.max(0, Math.min(box.bottom - view.bottom, box.top - view.top));
    });
  }

  /** Scrolls once the sizes of images are known, unless the person has scrolled meanwhile. */
  async #whenStill(scroll: () => void): Promise<void> {
    const before = this.scroller.scrollTop;
    const images = [...this.element.querySelectorAll<HTMLImageElement>("img:not([loading])")];
    await Promise.all(images.map((image) => image.decode().catch(() => {})));
    if (this.element.isConnected && Math.abs(this.scroller.scrollTop - before) < 2) scroll();
  }

  /** The server could not report the end of the run. */
  fail(err: CallError): void {
    if (err.trouble === "aborted") {
      this.status = { state: "stopped", title: "Stopped", facts: [], cause: "cancelled" };
      return;
    }
    this.status = { state: "error", title: err.trouble === "busy" ? "Busy" : "Not run", facts: [], cause: err.code };
    if (err.trouble === "offline") this.status.title = "Connection lost";
    this.#notice("bad", err.message);
  }

  /** The end of the run is unknown. */
  lose(why: string): void {
    this.status = { state: "lost", title: "Result gone", facts: [] };
    this.#notice("bad", why);
  }

  #isEmpty(): boolean {
    return this.#parts.every((part) => part instanceof Lines && part.all.length === 0) && this.element.querySelector(".notice") === null;
  }

  #noticeMissing(what: string, url: string): void {
    if (url === "") return this.#notice("", `${what} left out above: more was printed than is kept. To keep all of it, write it to a file in /data.`);
    const name = decodeURIComponent(url.split("?")[0]!.split("/").at(-1)!);
    const link = h("a", { href: url, download: name, "data-testid": "output-download" }, "download it");
    this.#notice("", `${what} left out above. All of it is in `, h("code", {}, `/data/.outputs/${name}`), ": ", link, ".");
  }

  #notice(kind: string, ...children: (string | Node)[]): void {
    const first = this.#isEmpty() ? "first" : "";
    this.element.append(h("p", { class: `notice ${kind} ${first}` }, ...children));
  }
}

/** Returns the addresses of the images of a result, in order. */
function imagesOf(result: ToolResult): string[] {
  return result.content.flatMap((content) => (content.type === "image" ? [/^image\/(png|jpeg|gif|webp)$/.test(content.mimeType) ? `data:${content.mimeType};base64,${content.data}` : ""] : []));
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
    outputs: list(d["outputs"]).map(fields).map(pieceOf),
    outputURL: fileAddress(d["output_url"]),
    displays: list(d["displays"]).map(fields).map((shown) => ({ mime: text(shown["mime_type"]), text: text(shown["text"]), plain: text(shown["plain"]) })),
  };
}

function pieceOf(piece: Record<string, unknown>): Piece {
  return {
    type: text(piece["type"]), text: text(piece["text"]), omitted: number(piece["omitted_bytes"]) ?? 0,
    index: number(piece["index"]), file: text(piece["file"]), url: fileAddress(piece["url"]),
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
