// Turns text with ANSI escape sequences into coloured spans. Unknown sequences are dropped, never
// shown or executed.
import { cssOf, hexOf, pair, parseColor, textOn, texts, themed, withContrast, type Color } from "./color.ts";

/** The style of a span. Colours are 0-15 of the palette, or "#rrggbb". */
export interface Style {
  readonly fg?: number | string;
  readonly bg?: number | string;
  readonly bold?: boolean;
  readonly dim?: boolean;
  readonly italic?: boolean;
  readonly underline?: boolean;
  readonly inverse?: boolean;
  readonly strike?: boolean;
}

export interface Span {
  text: string;
  style: Style;
}

/** How a span looks: classes of ansi.css, and colours for CSS that they do not have, or "". */
export interface Paint {
  classes: string[];
  color: string;
  background: string;
}

export const plain: Style = Object.freeze({});

// CSI sequences, OSC strings (titles, links) and two-character escapes; then control characters
// that show nothing. A string that has no end is one line: it must not hide what follows.
const escapes = /\x1b\[([0-?]*)([ -/]*[@-~])|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[PX^_][^\x1b\n]*(?:\x1b\\)?|\x1b(?:[ -/]*[0-~])?|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f\x9b]/g;

/** Matches the end of a text that may start an escape sequence and must wait for more. */
const unfinished = /\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\n]{0,4096}|[ -/]*)?$/;

/** Splits off an incomplete escape sequence. */
export function splitUnfinished(text: string): [whole: string, rest: string] {
  const at = text.lastIndexOf("\x1b");
  if (at < 0 || !unfinished.test(text.slice(at))) return [text, ""];
  return [text.slice(0, at), text.slice(at)];
}

/** Returns the spans of one line that starts in a style, and the style in which it ends. */
export function parse(line: string, style: Style = plain): { spans: Span[]; end: Style } {
  if (!/[\x00-\x08\x0b-\x1f\x7f\x9b]/.test(line)) return { spans: line === "" ? [] : [{ text: line, style }], end: style };
  const spans: Span[] = [];
  let at = 0;
  const push = (text: string) => {
    const last = spans.at(-1);
    if (text === "") return;
    if (last && last.style === style) last.text += text;
    else spans.push({ text, style });
  };
  for (const match of line.matchAll(escapes)) {
    push(line.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[2] === "m" && /^[0-9;:]*$/.test(match[1]!)) style = apply(style, match[1]!);
  }
  push(line.slice(at));
  return { spans, end: style };
}

/** Returns the text without escape sequences. */
export function strip(text: string): string {
  return text.replace(escapes, "");
}

function apply(style: Style, params: string): Style {
  const codes = params.split(/[;:]/).map((p) => (p === "" ? 0 : Number(p)));
  let next: { -readonly [K in keyof Style]: Style[K] } = { ...style };
  for (let i = 0; i < codes.length; i++) {
    const c = codes[i]!;
    if (c === 0) next = {};
    else if (c === 1) next.bold = true;
    else if (c === 2) next.dim = true;
    else if (c === 3) next.italic = true;
    else if (c === 4) next.underline = true;
    else if (c === 7) next.inverse = true;
    else if (c === 9) next.strike = true;
    else if (c === 22) delete next.bold, delete next.dim;
    else if (c === 23) delete next.italic;
    else if (c === 24) delete next.underline;
    else if (c === 27) delete next.inverse;
    else if (c === 29) delete next.strike;
    else if (c >= 30 && c <= 37) next.fg = c - 30;
    else if (c >= 40 && c <= 47) next.bg = c - 40;
    else if (c >= 90 && c <= 97) next.fg = c - 82;
    else if (c >= 100 && c <= 107) next.bg = c - 92;
    else if (c === 39) delete next.fg;
    else if (c === 49) delete next.bg;
    else if (c === 38 || c === 48) {
      const [color, used] = extended(codes.slice(i + 1));
      i += used;
      if (color !== undefined) next[c === 38 ? "fg" : "bg"] = color;
    }
  }
  return Object.keys(next).length === 0 ? plain : next;
}

function extended(codes: number[]): [color: number | string | undefined, used: number] {
  const byte = (n: number | undefined) => n !== undefined && Number.isInteger(n) && n >= 0 && n <= 255;
  const hex = (...rgb: number[]) => "#" + rgb.map((n) => n.toString(16).padStart(2, "0")).join("");
  if (codes[0] === 2) {
    const rgb = codes.slice(1, 4);
    return [rgb.length === 3 && rgb.every(byte) ? hex(...rgb) : undefined, 4];
  }
  const n = codes[1];
  if (codes[0] !== 5 || !byte(n)) return [undefined, codes[0] === 5 ? 2 : 0];
  if (n! < 16) return [n, 2];
  if (n! >= 232) return [hex(...Array<number>(3).fill(8 + (n! - 232) * 10)), 2];
  const level = (v: number) => (v === 0 ? 0 : 55 + v * 40);
  const cube = n! - 16;
  return [hex(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6)), 2];
}

// The palette where a colour is the background, or has one. The colours of ansi.css are for text on
// the page's background, and differ between the themes.
const palette = [
  "#000000", "#cd3131", "#0dbc79", "#e5e510", "#2472c8", "#bc3fbc", "#11a8cd", "#e5e5e5",
  "#666666", "#f14c4c", "#23d18b", "#f5f543", "#3b8eea", "#d670d6", "#29b8db", "#ffffff",
];

function colorOf(color: number | string | undefined): Color | undefined {
  return color === undefined ? undefined : parseColor(typeof color === "number" ? palette[color]! : color);
}

/** Returns how text of a style looks, readable in both themes. */
export function paintOf(style: Style): Paint {
  const [fg, bg] = style.inverse ? [style.bg, style.fg] : [style.fg, style.bg];
  const [text, behind] = [colorOf(fg), colorOf(bg)];
  const paint: Paint = { classes: [], color: "", background: "" };
  if (behind) {
    [paint.color, paint.background] = (text ? pair(text, behind) : [textOn(behind), behind]).map(hexOf) as [string, string];
  } else if (style.inverse) {
    paint.classes.push("bg-text");
    if (text) paint.color = cssOf(themed((background) => withContrast(text, background), texts));
    else paint.classes.push("fg-surface");
  } else if (typeof fg === "number") {
    paint.classes.push(`fg-${fg}`);
  } else if (text) {
    paint.color = cssOf(themed((surface) => withContrast(text, surface)));
  }
  for (const flag of ["bold", "dim", "italic", "underline", "strike"] as const) if (style[flag]) paint.classes.push(`ansi-${flag}`);
  return paint;
}
