// Previews of files. Downloads stay attachments: the page fetches the bytes and shows them itself.
import { parseCSV } from "./csv.ts";
import { closeOnBackdrop, h, icon, iconButton } from "./dom.ts";
import type { Entry } from "./files.ts";
import { bytes, kindOf, visible, type Kind } from "./format.ts";
import { renderTable, tableOfRows } from "./tables.ts";

const longestText = 512 * 1024;
const largestImage = 32 * 1024 * 1024;
const mostRows = 500;

const imageTypes = new Map(Object.entries({ png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp", svg: "image/svg+xml", avif: "image/avif", bmp: "image/bmp" }));

export async function preview(f: Entry): Promise<void> {
  const body = h("div", { class: "preview-body", "data-testid": "preview-body", tabindex: 0, role: "region", "aria-label": "Content" }, h("p", { class: "hint" }, "Loading…"));
  const about = h("p", { class: "muted" }, bytes(f.size));
  const close = iconButton("close", "Close", () => dialog.close(), "preview-close");
  const dialog = h(
    "dialog",
    { class: "dialog wide", "aria-labelledby": "preview-title", "data-testid": "preview-dialog" },
    h(
      "header",
      {},
      h("div", {}, h("h2", { id: "preview-title" }, visible(f.name)), about),
      f.url && h("a", { class: "icon-button", href: f.url, download: f.name.split("/").at(-1), "aria-label": "Download", title: "Download" }, icon("download")),
      close,
    ),
    body,
  );
  const urls: string[] = [];
  const abort = new AbortController();
  dialog.addEventListener("close", () => {
    abort.abort();
    dialog.remove();
    urls.forEach((url) => URL.revokeObjectURL(url));
  });
  closeOnBackdrop(dialog);
  document.body.append(dialog);
  dialog.showModal();
  close.focus();
  const blobURL = (blob: Blob) => {
    const url = URL.createObjectURL(blob);
    urls.push(url);
    return url;
  };
  try {
    body.replaceChildren(...(await contentOf(f, kindOf(f.name, f.mime), abort.signal, blobURL, (note) => about.append(` · ${note}`))));
  } catch (err) {
    if (!abort.signal.aborted) body.replaceChildren(h("p", { class: "hint" }, (err as Error).message));
  }
}

async function contentOf(f: Entry, kind: Kind, signal: AbortSignal, blobURL: (b: Blob) => string, note: (text: string) => void): Promise<Node[]> {
  const cannot = (why: string) => [h("p", { class: "hint" }, why)];
  if (f.url === "") return cannot("This file has no link.");
  if (kind === "image" || kind === "pdf") {
    if (f.size > largestImage) return cannot("This file is too large to show here. Download it instead.");
    const ext = f.name.split(".").at(-1)?.toLowerCase() ?? "";
    const type = kind === "pdf" ? "application/pdf" : (imageTypes.get(ext) ?? "image/png");
    const url = blobURL(new Blob([await (await get(f.url, signal)).arrayBuffer()], { type }));
    if (kind === "image") {
      const image = h("img", { src: url, alt: visible(f.name) });
      image.addEventListener("load", () => image.naturalWidth > 0 && note(`${image.naturalWidth} × ${image.naturalHeight}`));
      image.addEventListener("error", () => image.replaceWith(...cannot("The browser cannot show this image.")));
      return [image];
    }
    const open = h("p", { class: "hint" }, h("a", { href: url, target: "_blank", rel: "noopener" }, "Open in a new tab"));
    return navigator.pdfViewerEnabled ? [h("iframe", { src: `${url}#navpanes=0&view=FitH`, title: visible(f.name) }), open] : [open];
  }
  const text = await start(await get(f.url, signal));
  if (text === undefined) return cannot("There is no preview for this kind of file. Download it instead.");
  if (f.size > longestText) note(`the first ${bytes(longestText)} are shown`);
  if (f.size === 0) return cannot("The file is empty.");
  if (kind === "table") {
    const { rows, truncated } = parseCSV(text, undefined, mostRows + 1);
    const [head, ...rest] = rows;
    if (head) {
      note(truncated || f.size > longestText ? `the first ${rest.length} rows` : `${rest.length} rows, ${head.length} columns`);
      return [renderTable(tableOfRows(head, rest), visible(f.name))];
    }
  }
  return [h("pre", {}, text)];
}

async function get(url: string, signal: AbortSignal): Promise<Response> {
  const response = await fetch(url, { signal, cache: "no-store", credentials: "omit", redirect: "error" });
  if (!response.ok) throw new Error((await response.text()).trim() || `The server answered ${response.status}.`);
  return response;
}

/** Returns the start of a response as text, or undefined if it is not text. */
async function start(response: Response): Promise<string | undefined> {
  const reader = response.body!.getReader();
  const parts: Uint8Array<ArrayBuffer>[] = [];
  let size = 0;
  while (size < longestText) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    size += value.length;
  }
  void reader.cancel();
  const all = new Uint8Array(await new Blob(parts).arrayBuffer()).subarray(0, longestText);
  if (all.subarray(0, 8192).includes(0)) return undefined;
  return new TextDecoder().decode(all);
}
