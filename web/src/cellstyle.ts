// The styles of table cells, as pandas' Styler writes them: rules for ids in a style element. They
// are hostile. Only listed properties with listed kinds of values get through.
import { cssOf, legible, over, parseColor, textOn, themed, type Color } from "./color.ts";

const mostCSS = 4_000_000; // characters
const mostStyles = 40_000; // cells that rules name
const longestValue = 600;

const color = /^(?:#[0-9a-f]{3,8}|[a-z]{3,24}|(?:rgb|hsl)a?\((?:[\d\s.,%/+-]|deg){1,80}\))$/i;
const line = "(?:none|underline|overline|line-through|solid|double|dotted|dashed|wavy)";
const allowed = new Map<string, RegExp>([
  ["background-color", color],
  ["color", color],
  ["font-weight", /^(?:normal|bold|bolder|lighter|[1-9]00)$/i],
  ["font-style", /^(?:normal|italic|oblique)$/i],
  ["text-align", /^(?:left|right|center|start|end|justify)$/i],
  ["text-decoration", new RegExp(`^${line}(?: ${line}){0,3}$`, "i")],
  ["background-image", /^linear-gradient\([\w#%.,()\s+-]+\)$/i],
]);
const functions = new Set(["linear-gradient", "rgb", "rgba", "hsl", "hsla"]);
const forbidden = /url\(|image|var|attr|expression|[@\\;]/i;

/** The properties of a cell, by name. */
export type CellStyle = ReadonlyMap<string, string>;

/** Returns the styles that the style elements of html have for ids. */
export function cellStyles(html: string): Map<string, CellStyle> {
  const styles = new Map<string, Map<string, string>>();
  const css = withoutComments(styleText(html));
  let count = 0;
  for (let at = 0; count < mostStyles; ) {
    const open = css.indexOf("{", at);
    const close = open < 0 ? -1 : css.indexOf("}", open);
    if (close < 0) break;
    const declared = declarations(css.slice(open + 1, close));
    for (const selector of declared.size === 0 ? [] : css.slice(at, open).split(",")) {
      const id = /^#([\w-]{1,100})$/.exec(selector.trim())?.[1];
      if (id === undefined || count++ >= mostStyles) continue;
      const style = styles.get(id) ?? new Map<string, string>();
      for (const [name, value] of declared) set(style, name, value);
      styles.set(id, style);
    }
    at = close + 1;
  }
  return styles;
}

/** Returns the text of all style elements. */
function styleText(html: string): string {
  const parts: string[] = [];
  const start = /<style(?=[\s>])[^<>]*>/gi;
  const end = /<\/style/gi;
  while (start.exec(html)) {
    end.lastIndex = start.lastIndex;
    const match = end.exec(html);
    if (!match) break;
    parts.push(html.slice(start.lastIndex, match.index));
    start.lastIndex = end.lastIndex;
  }
  return parts.join("\n").slice(0, mostCSS);
}

function withoutComments(css: string): string {
  const [first, ...rest] = css.split("/*");
  return [first, ...rest.map((part) => (part.includes("*/") ? part.slice(part.indexOf("*/") + 2) : ""))].join(" ");
}

function declarations(body: string): Map<string, string> {
  const found = new Map<string, string>();
  for (const declaration of body.split(";")) {
    const colon = declaration.indexOf(":");
    if (colon < 0 || declaration.length > longestValue) continue;
    const written = declaration.slice(0, colon).trim().toLowerCase();
    const value = declaration.slice(colon + 1).trim().replace(/\s{0,9}!\s{0,9}important$/i, "");
    const isGradient = allowed.get("background-image")!.test(value);
    const name = written === "background" ? (isGradient ? "background-image" : "background-color") : written;
    if (written === "background-image" || !isSafe(name, value)) continue;
    if (written === "background") found.delete("background-color"), found.delete("background-image");
    set(found, name, value);
  }
  return found;
}

function isSafe(name: string, value: string): boolean {
  if (!allowed.get(name)?.test(value) || forbidden.test(value)) return false;
  return [...value.matchAll(/([a-z-]*)\(/gi)].every(([, called]) => functions.has(called!.toLowerCase()));
}

/** Sets a property; a gradient hides the colour that was set before it, as in CSS. */
function set(style: Map<string, string>, name: string, value: string): void {
  if (name === "background-image") style.delete("background-color");
  style.delete(name);
  style.set(name, value);
}

/**
 * Returns the properties to set on a cell, so that its text can be read in both themes. read
 * returns the colour that a value means.
 */
export function readable(style: CellStyle, read: (value: string) => Color | undefined): [name: string, value: string][] {
  const out = [...style].filter(([name]) => !/color|image/.test(name));
  const [back, text, image] = ["background-color", "color", "background-image"].map((name) => style.get(name));
  const front = text === undefined ? undefined : read(text);
  const behind = back === undefined ? undefined : read(back);
  if (behind && behind[3] > 0) {
    const solid = (surface: Color) => over(behind, surface);
    out.push(["background-color", cssOf(themed(solid))]);
    out.push(["color", cssOf(themed((surface) => (front ? legible(over(front, solid(surface)), solid(surface)) : textOn(solid(surface)))))]);
  } else if (front) {
    out.push(["color", cssOf(themed((surface) => legible(over(front, surface), surface)))]);
  }
  // The bar of a number is behind text: a layer of the page's own makes it paler.
  if (image !== undefined) out.push(["background-image", `linear-gradient(var(--bar-veil), var(--bar-veil)), ${image}`]);
  return out;
}

let context: CanvasRenderingContext2D | null | undefined;
const known = new Map<string, Color | undefined>();

/** Returns the colour that the browser reads in a value, if it is one. */
export function colorOf(value: string): Color | undefined {
  if (known.has(value)) return known.get(value);
  context ??= document.createElement("canvas").getContext("2d");
  if (!context) return undefined;
  // An invalid value leaves the one before it.
  const [first, second] = ["#010203", "#030201"].map((before) => {
    context!.fillStyle = before;
    context!.fillStyle = value;
    return String(context!.fillStyle);
  });
  const color = first === second ? parseColor(first!) : undefined;
  if (known.size > 5_000) known.clear();
  known.set(value, color);
  return color;
}
