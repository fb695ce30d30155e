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
  returned: boolean; // after a carriage return: the next character overwrites the line
  rest: string; // an unfinished escape sequence
  style: Style;
}

/** Longer lines are cut: browsers cannot lay them out. */
export const longestLine = 20_000;

export class Lines {
  readonly all: Line[] = [];
  #open: Record<Stream, Open> = { stdout: fresh(), stderr: fresh() };

  /** Adds a piece and returns the index of the first line that it changed. */
  add(stream: Stream, piece: string): number {
    const open = this.#open[stream];
    const first = open.line ? open.at : this.all.length;
    const [text, rest] = splitUnfinished(open.rest + piece);
    open.rest = rest.length > 8192 ? "" : rest;
    for (const part of text.match(/[^\r\n]+|\r+\n|\n|\r+/g) ?? []) {
      if (part.endsWith("\n")) {
        this.#current(stream, open);
        this.#finish(open);
      } else if (part.startsWith("\r")) {
        open.returned = true;
      } else {
        const line = this.#current(stream, open);
        if (open.returned) line.text = "";
        open.returned = false;
        if (line.text.length < longestLine) line.text = (line.text + part).slice(0, longestLine);
      }
    }
    return first;
  }

  /** Adds a line of the page's own and ends the open lines. */
  note(text: string): number {
    for (const open of Object.values(this.#open)) this.#finish(open);
    return this.all.push({ stream: "note", text, style: plain }) - 1;
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
    open.returned = false;
  }

  /** Returns the text to copy: everything, without colours. */
  text(stream?: Stream): string {
    return this.all.filter((l) => !stream || l.stream === stream).map((l) => strip(l.text)).join("\n");
  }
}

export function spansOf(line: Line): Span[] {
  return parse(line.text, line.style).spans;
}

function fresh(): Open {
  return { line: undefined, at: -1, returned: false, rest: "", style: plain };
}
