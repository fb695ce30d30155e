// What code shows beside its text: tables, pictures, HTML, Markdown.
import { h, icon } from "./dom.ts";
import { visible } from "./format.ts";
import { cleanHTML, estimatedHeight, frameDocument } from "./html.ts";
import { parseMarkdown, type Node as MarkdownNode } from "./markdown.ts";
import type { Piece, Shown } from "./parts.ts";
import { renderTable, tableOfHTML } from "./tables.ts";

/** Something with text that code showed. */
export interface Display {
  mime: string;
  text: string;
  plain: string; // the printed text; empty if it was not printed
}

const frameCSS = `
:root { color-scheme: light; font: 13px/1.5 system-ui, sans-serif; }
body { margin: 10px 12px; color: CanvasText; overflow-wrap: anywhere; }
body > :first-child { margin-top: 0; }
body > :last-child { margin-bottom: 0; }
h1, h2, h3 { line-height: 1.3; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 10px; border-bottom: 1px solid color-mix(in srgb, CanvasText 18%, transparent); text-align: left; }
pre, code { font-family: ui-monospace, monospace; }
`;

/** Longer Markdown is shown as it is written. */
const longestMarkdown = 64 * 1024;

/** Makes the elements of one run. nonce is the page's, for the styles of frames. */
export class Showing {
  #tables = 0;

  constructor(
    private readonly displays: Display[],
    private readonly images: string[], // addresses of the images of the result, "" if one cannot be shown
    private readonly nonce: string,
  ) {}

  /** Returns the element of a piece, or undefined if its printed text is all there is to see. */
  of(piece: Piece): Shown<HTMLElement> | undefined {
    if (piece.type === "image") return { plain: "", element: this.#image(this.images[piece.index ?? -1] ?? "", piece) };
    const display = this.displays[piece.index ?? -1];
    return display && this.#display(display, piece);
  }

  #display({ mime, text, plain }: Display, piece: Piece): Shown<HTMLElement> | undefined {
    // As an image, an SVG runs nothing and loads nothing.
    if (mime === "image/svg+xml") return { plain, element: this.#image(`data:image/svg+xml,${encodeURIComponent(text)}`, piece) };
    if (mime === "text/markdown" && text.length <= longestMarkdown) return { plain, element: h("div", { class: "markdown", "data-testid": "output-markdown" }, ...parseMarkdown(text).map(nodeOf)) };
    if (mime === "text/html") {
      const table = tableOfHTML(text);
      if (table && !(plain !== "" && table.body.flat().length === 0)) return { plain, element: renderTable(table, `Table ${++this.#tables}`) };
      if (!table && hasText(text)) return { plain, element: this.#frame(text) };
    }
    return plain === "" && text !== "" ? { plain, element: h("div", { class: "log-line" }, text) } : undefined;
  }

  #image(source: string, { file, url }: Piece): HTMLElement {
    const name = file.split("/").at(-1) || "image";
    const isSaved = file !== "" && !file.startsWith(".");
    const address = source || url;
    if (address === "") return missing("The code showed an image here that is not kept: it is too large, or the server needed the memory.");
    const image = h("img", { src: address, alt: isSaved ? visible(file) : "Image that the code showed", loading: source === "" ? "lazy" : null, "data-testid": "output-image" });
    image.addEventListener("error", () => image.replaceWith(missing("The browser cannot show this image, or it is no longer kept.")));
    const label = isSaved ? `Download ${visible(file)}` : "Download this image";
    return h(
      "div",
      { class: "picture" },
      image,
      h("a", { class: "icon-button", href: url || source, download: name, title: label, "aria-label": label, "data-testid": "image-download" }, icon("download")),
    );
  }

  #frame(html: string): HTMLElement {
    const frame = h("iframe", { sandbox: "", title: "HTML that the code showed", "data-testid": "output-html", loading: "lazy" });
    documents.set(frame, frameDocument(html, frameCSS, this.nonce));
    applyTheme(frame);
    frame.style.height = `${Math.min(420, estimatedHeight(html))}px`;
    return frame;
  }
}

const documents = new WeakMap<HTMLIFrameElement, string>();

/** Gives frames the theme of the page, which they cannot see. */
export function applyThemeTo(element: ParentNode): void {
  for (const frame of element.querySelectorAll("iframe")) applyTheme(frame);
}

function applyTheme(frame: HTMLIFrameElement): void {
  const content = documents.get(frame);
  const theme = document.documentElement.dataset["theme"] ?? "light";
  if (content === undefined || frame.dataset["theme"] === theme) return;
  frame.dataset["theme"] = theme;
  frame.srcdoc = content.replace("color-scheme: light", `color-scheme: ${theme}`);
}

/** Whether something of the HTML can be seen. */
function hasText(html: string): boolean {
  return /\S/.test(cleanHTML(html).replace(/<[^>]*>/g, ""));
}

function missing(text: string): HTMLElement {
  return h("p", { class: "missing" }, text);
}

function nodeOf(node: MarkdownNode): HTMLElement | Text {
  if (typeof node === "string") return document.createTextNode(node);
  const children = node.children.map(nodeOf);
  if (node.href !== undefined) return h("a", { href: node.href, target: "_blank", rel: "noopener noreferrer nofollow", title: node.href }, ...children);
  // The levels of headings in a text need not fit those of the page.
  return /^h\d$/.test(node.tag) ? h("p", { class: node.tag }, ...children) : h(node.tag, {}, ...children);
}
