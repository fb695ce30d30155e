// A program's output as lines, built from pieces as they arrive.
import { parse, plain, splitUnfinished, strip, type Span, type Style } from "./ansi.ts";

export type Stream = "stdout" | "stderr";

export interface Line {
  readonly stream: Stream | "note"; // a note is the page's own
  text: string; // with escape sequences
  readonly style: Style; // at the start of the line
}

interface Open {
  line: Line | undefined; // that the next piece continues
  at: number; // its index
  column: number | undefined; // after a carriage return or a backspace: where the next text overwrites the line
  rest: string; // an unfinished escape sequence
  style: Style;
}

/** Longer lines are cut: browsers cannot lay them out. */
export const longestLine = 20_000;

export class Lines {
  readonly all: Line[] = [];
  #open: Record<Stream, Open>;

  /** Continues in the colours of earlier lines. */
  constructor(before?: Lines) {
    this.#open = { stdout: fresh(before && before.#style("stdout")), stderr: fresh(before && before.#style("stderr")) };
  }

  /** Adds a piece and returns the index of the first line that it changed. */
  add(stream: Stream, piece: string): number {
    const open = this.#open[stream];
    const first = open.line ? open.at : this.all.length;
    const [text, rest] = splitUnfinished(open.rest + piece);
    open.rest = rest.length > 8192 ? "" : rest;
    for (const part of text.match(/[^\r\n\b]+|\r+\n|\n|\r+|\x08+/g) ?? []) {
      if (part.endsWith("\n")) {
        this.#current(stream, open);
        this.#finish(open);
      } else if (part.startsWith("\r")) {
        open.column = 0;
      } else if (part.startsWith("\b")) {
        if (open.line && isSimple(open.line.text)) open.column = Math.max(0, (open.column ?? open.line.text.length) - part.length);
      } else {
        write(this.#current(stream, open), part, open);
      }
    }
    return first;
  }

  /** Adds a line of the page's own and ends the open lines. */
  note(text: string): number {
    for (const open of Object.values(this.#open)) this.#finish(open);
    return this.all.push({ stream: "note", text, style: plain }) - 1;
  }

  /** Says that output is missing here. */
  gap(bytes: number): number {
    return this.note(`… ${bytes.toLocaleString("en")} bytes of output are left out here …`);
  }

  /**
   * Removes a text if it is what stdout ends with. Lines of stderr may be between its lines. Returns
   * whether it was there.
   */
  removeEnd(text: string): boolean {
    const wanted = text.replace(/\n$/, "").split("\n");
    const stdout = this.all.flatMap((line, i) => (line.stream === "stdout" ? [i] : [])).slice(-wanted.length);
    if (!text.endsWith("\n") || stdout.length < wanted.length || !stdout.every((i, k) => strip(this.all[i]!.text) === wanted[k])) return false;
    for (const i of stdout.reverse()) this.all.splice(i, 1);
    return true;
  }

  #style(stream: Stream): Style {
    this.#finish(this.#open[stream]);
    return this.#open[stream].style;
  }

  #current(stream: Stream, open: Open): Line {
    if (!open.line) {
      open.line = { stream, text: "", style: open.style };
      open.at = this.all.push(open.line) - 1;
    }
    return open.line;
  }

  #finish(open: Open): void {
    if (open.line?.text.includes("\x1b")) open.style = parse(open.line.text, open.style).end;
    open.line = undefined;
    open.column = undefined;
  }

  /** Returns the text to copy: everything, without colours. */
  text(stream?: Stream): string {
    return this.all.filter((l) => !stream || l.stream === stream).map((l) => strip(l.text)).join("\n");
  }
}

/**
 * Writes text to a line as a terminal does: at its end, or over what a carriage return or backspaces
 * went back to. Where colours are involved, it replaces the rest of the line.
 */
function write(line: Line, text: string, open: Open): void {
  if (open.column === undefined) {
    if (line.text.length < longestLine) line.text = (line.text + text).slice(0, longestLine);
    return;
  }
  const end = open.column + text.length;
  const rest = isSimple(line.text + text) ? line.text.slice(end) : "";
  line.text = (line.text.slice(0, open.column) + text).slice(0, longestLine) + rest;
  open.column = rest === "" ? undefined : end;
}

/** Whether each unit of a text is one character on screen. */
function isSimple(text: string): boolean {
  return !/[\x1b\ud800-\udfff]/.test(text);
}

export function spansOf(line: Line): Span[] {
  return parse(line.text, line.style).spans;
}

function fresh(style: Style = plain): Open {
  return { line: undefined, at: -1, column: undefined, rest: "", style };
}
