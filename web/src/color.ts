// Colours that can be read: what code chooses fits a light or a dark background, rarely both.

/** Red, green and blue from 0 to 255, and opacity from 0 to 1. */
export type Color = readonly [r: number, g: number, b: number, a: number];

/** A value for each theme. */
export interface Themed {
  light: string;
  dark: string;
}

/** What is behind output, and its text: --surface and --text of theme.css. */
export const surfaces: Themed = { light: "#ffffff", dark: "#14171b" };
export const texts: Themed = { light: "#16191d", dark: "#e6e9ec" };

/** The least contrast of text (WCAG AA). */
export const enough = 4.5;

const black: Color = [0, 0, 0, 1];
const white: Color = [255, 255, 255, 1];

/** Reads "#rrggbb", "rgb(r, g, b)" and "rgba(r, g, b, a)", as browsers write colours. */
export function parseColor(text: string): Color | undefined {
  const hex = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(text);
  if (hex) return [parseInt(hex[1]!, 16), parseInt(hex[2]!, 16), parseInt(hex[3]!, 16), 1];
  const rgb = /^rgba?\((\d{1,3}), (\d{1,3}), (\d{1,3})(?:, (\d?\.?\d{1,20}))?\)$/.exec(text);
  return rgb ? [Number(rgb[1]), Number(rgb[2]), Number(rgb[3]), Number(rgb[4] ?? 1)] : undefined;
}

export function hexOf(color: Color): string {
  return "#" + color.slice(0, 3).map((n) => n.toString(16).padStart(2, "0")).join("");
}

/** Returns the contrast of two opaque colours, from 1 to 21, as WCAG defines it. */
export function contrast(a: Color, b: Color): number {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y) as [number, number];
  return (high + 0.05) / (low + 0.05);
}

function luminance(color: Color): number {
  const [r, g, b] = color.slice(0, 3).map((n) => (n <= 10 ? n / 255 / 12.92 : ((n / 255 + 0.055) / 1.055) ** 2.4)) as [number, number, number];
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Returns a colour in front of an opaque one. */
export function over(front: Color, back: Color): Color {
  return mix(back, front, front[3]);
}

function mix(from: Color, to: Color, part: number): Color {
  const at = (i: 0 | 1 | 2) => Math.round(from[i] + (to[i] - from[i]) * part);
  return [at(0), at(1), at(2), 1];
}

/** Makes a colour darker or lighter until it contrasts with another one. */
export function withContrast(color: Color, against: Color): Color {
  return shift(color, against).color;
}

/** Makes text and background contrast. It changes the one that needs the smaller change. */
export function pair(text: Color, background: Color): [text: Color, background: Color] {
  const [newText, newBackground] = [shift(text, background), shift(background, text)];
  return newText.part < newBackground.part ? [newText.color, background] : [text, newBackground.color];
}

/** Returns text as it is, or in a similar colour that can be read; for a grey, white or a black. */
export function legible(text: Color, background: Color): Color {
  if (contrast(text, background) >= enough) return text;
  const isGrey = Math.max(text[0], text[1], text[2]) - Math.min(text[0], text[1], text[2]) < 24;
  return isGrey ? textOn(background) : withContrast(text, background);
}

/** Mixes a colour with the smallest part of black or white that makes it contrast. */
function shift(color: Color, against: Color): { color: Color; part: number } {
  const poles = luminance(color) > luminance(against) ? [white, black] : [black, white];
  const pole = poles.find((p) => contrast(p, against) >= enough) ?? poles[0]!; // one of them does
  for (let tenths = 0; tenths < 10; tenths++) {
    const mixed = tenths === 0 ? color : mix(color, pole, tenths / 10);
    if (contrast(mixed, against) >= enough) return { color: mixed, part: tenths / 10 };
  }
  return { color: pole, part: 1 };
}

/** Returns white or a black, for text on an opaque background. */
export function textOn(background: Color): Color {
  const dark = parseColor(texts.light)!;
  return withContrast(contrast(white, background) > contrast(dark, background) ? white : dark, background);
}

/** Computes a colour for each theme from what is behind it. */
export function themed(value: (behind: Color) => Color, behind = surfaces): Themed {
  return { light: hexOf(value(parseColor(behind.light)!)), dark: hexOf(value(parseColor(behind.dark)!)) };
}

/** Writes it as a value of CSS that follows the theme. */
export function cssOf({ light, dark }: Themed): string {
  return light === dark ? light : `light-dark(${light}, ${dark})`;
}
