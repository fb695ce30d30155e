// What a run printed and showed, as parts that are drawn one below the other.
import { Lines, type Stream } from "./lines.ts";

/** A piece of what a run printed and showed, as the server lists it. */
export interface Piece {
  type: string; // stdout, stderr, display or image
  text: string; // of stdout and stderr
  omitted: number; // bytes of stdout or stderr that are not kept, in place of text
  index: number | undefined; // of a display, or of an image among the images of the result
  file: string; // of an image
  url: string; // of the file
}

/** Something that a run showed, and the printed text that it replaces ("": none). */
export interface Shown<E> {
  element: E;
  plain: string;
}

export type Part<E> = Lines | Shown<E>;

export const isPrinted = ({ type }: Piece): boolean => type === "stdout" || type === "stderr";

/**
 * Returns the parts in order. A piece for which show returns nothing is not shown: the text that was
 * printed for it stays.
 */
export function partsOf<E>(pieces: Piece[], show: (piece: Piece) => Shown<E> | undefined): Part<E>[] {
  const parts: Part<E>[] = [];
  let lines = new Lines();
  let gap = 0;
  const end = () => {
    if (gap > 0) lines.gap(gap);
    gap = 0;
    if (lines.all.length > 0) parts.push(lines);
  };
  for (const piece of pieces) {
    if (isPrinted(piece)) {
      if (piece.omitted === 0 && gap > 0) lines.gap(gap);
      gap = piece.omitted === 0 ? 0 : gap + piece.omitted;
      lines.add(piece.type as Stream, piece.text);
      continue;
    }
    const shown = show(piece);
    if (!shown) continue;
    if (shown.plain !== "" && gap === 0) lines.removeEnd(shown.plain);
    end();
    parts.push(shown);
    lines = new Lines(lines);
  }
  end();
  return parts;
}
