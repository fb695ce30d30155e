// Finds the visible ones of many rows of equal height.

export interface Window {
  first: number;
  last: number; // exclusive
  top: number; // pixels from the top of the content to the first row
  height: number; // of the whole content
}

/** Browsers lay out up to about ten million pixels; beyond that, positions are scaled. */
export const tallest = 8_000_000;

/** Returns the rows to show for a scroll position and a view height. */
export function windowOf(rows: number, rowHeight: number, scrollTop: number, viewHeight: number, overscan = 20): Window {
  const real = rows * rowHeight;
  const height = Math.min(real, tallest);
  const reach = Math.max(1, height - viewHeight);
  const position = Math.min(Math.max(0, scrollTop), reach);
  // If the content is taller than a browser allows, scroll positions are proportional.
  const offset = real > height ? (position / reach) * (real - viewHeight) : position;
  const first = Math.max(0, Math.floor(offset / rowHeight) - overscan);
  const last = Math.min(rows, Math.ceil((offset + viewHeight) / rowHeight) + overscan);
  return { first: Math.min(first, last), last, top: first * rowHeight - offset + position, height };
}
