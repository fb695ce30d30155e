// Reduces HTML that code showed to harmless tags. It does not use DOMParser, because browsers apply
// the page's policy to it and report violations. A sandboxed frame shows the result: this is
// the second line of defence.

const kept = new Set(
  ("a abbr article aside b blockquote br caption code col colgroup dd del details dfn div dl dt em figcaption figure footer h1 h2 h3 h4 h5 h6 header hr i ins kbd li main mark " +
    "nav ol p pre q s samp section small span strong sub summary sup table tbody td tfoot th thead time tr u ul var").split(" "),
);
const keptAttributes = new Set(["colspan", "rowspan", "scope", "title", "dir", "lang", "open", "start", "reversed", "align", "valign"]);
const childless = new Set(["br", "col", "hr"]);

// The content of these elements is not shown; in the first ones it is not even markup.
const raw = new Set("script style textarea title xmp iframe noembed noframes noscript plaintext".split(" "));
const dropped = new Set("svg math object select button video audio canvas template head form dialog".split(" "));

const deepest = 200;

// A "<" outside of quotes ends the attempt. Otherwise many unfinished tags would be scanned again
// and again.
const tag = /<(\/?)([a-z][a-z0-9:-]*)(?=[\s/>])((?:[^<>"']|"[^"]*"|'[^']*')*)>/iy;
const attribute = /([^\s"'<>/=]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'=<>`]+)))?/g;

/** Returns the harmless part of html as well-formed HTML, with ids only if asked for. */
export function cleanHTML(html: string, withIds = false): string {
  let out = "";
  const open: string[] = [];
  let at = 0;
  const text = (s: string) => (out += s.replaceAll("<", "&lt;").replaceAll(">", "&gt;"));
  while (at < html.length) {
    const next = html.indexOf("<", at);
    if (next < 0) {
      text(html.slice(at));
      break;
    }
    text(html.slice(at, next));
    if (html.startsWith("<!--", next)) {
      at = after(html, "-->", next + 4);
      continue;
    }
    if (html[next + 1] === "!" || html[next + 1] === "?") {
      at = after(html, ">", next);
      continue;
    }
    tag.lastIndex = next;
    const match = tag.exec(html);
    if (!match) {
      text("<");
      at = next + 1;
      continue;
    }
    at = tag.lastIndex;
    const closing = match[1] === "/";
    const name = match[2]!.toLowerCase();
    if (!closing && (raw.has(name) || dropped.has(name))) {
      at = afterElement(html, name, at);
    } else if (!kept.has(name)) {
      continue; // its children stay
    } else if (closing) {
      const level = open.lastIndexOf(name);
      if (level >= 0) while (open.length > level) out += `</${open.pop()}>`;
    } else if (open.length < deepest) {
      out += `<${name}${attributesOf(match[3]!, withIds)}>`;
      if (!childless.has(name)) open.push(name);
    }
  }
  while (open.length > 0) out += `</${open.pop()}>`;
  return out;
}

function attributesOf(source: string, withIds: boolean): string {
  let out = "";
  for (const [, name, double, single, bare] of source.matchAll(attribute)) {
    const lower = name!.toLowerCase();
    if (!keptAttributes.has(lower) && !(withIds && lower === "id")) continue;
    const value = double ?? single ?? bare ?? "";
    out += ` ${lower}="${value.replaceAll('"', "&quot;").replaceAll("<", "&lt;").replaceAll(">", "&gt;")}"`;
  }
  return out;
}

function after(html: string, end: string, from: number): number {
  const i = html.indexOf(end, from);
  return i < 0 ? html.length : i + end.length;
}

/**
 * Returns the position after the end tag of an element, counting nested ones, or the end of html.
 */
function afterElement(html: string, name: string, from: number): number {
  const tags = new RegExp(`<(/?)${name}(?=[\\s/>])[^<>]*>`, "gi");
  tags.lastIndex = from;
  let level = 1;
  for (let match = tags.exec(html); match; match = tags.exec(html)) {
    if (match[1] === "/") level--;
    else if (!raw.has(name)) level++;
    if (level === 0) return tags.lastIndex;
  }
  return html.length;
}

const lineHeight = 20;
const rowHeight = 29; // of a table
const gap = 13; // between paragraphs and the like
const lineLength = 80; // characters, roughly
const spaced = new Set("p ul ol dl pre blockquote figure table h1 h2 h3 h4 h5 h6".split(" "));
const inLine = new Set("a abbr b code del dfn em i ins kbd mark q s samp small span strong sub sup td th time u var".split(" "));
const taller = new Map([["h1", 16], ["h2", 8], ["h3", 2], ["hr", gap]]); // than a line

/**
 * Estimates how high html is in a frame, in pixels: a frame without rights cannot report it. Of
 * closed details, only the summary counts.
 */
export function estimatedHeight(html: string): number {
  const details: { closed: boolean; inSummary: boolean }[] = [];
  const isHidden = () => details.some((d) => d.closed && !d.inSummary);
  let height = 28; // margins and border
  let [line, isRow, isPre, isFirst] = ["", false, false, true];
  const endLine = () => {
    const text = isPre ? line.replace(/^\n|\n$/g, "") : line.trim();
    const lines = isPre ? text.split("\n").length : Math.ceil(text.length / lineLength);
    if (text.trim() !== "") height += isRow ? rowHeight : lines * lineHeight;
    isFirst &&= text.trim() === "";
    line = "";
  };
  for (const [, closing, name, attributes, text] of cleanHTML(html).matchAll(/<(\/?)([a-z0-9]+)([^>]*)>|([^<]+)/g)) {
    if (text !== undefined) {
      if (!isHidden()) line += isPre ? text : text.replace(/\s+/g, " ");
      continue;
    }
    if (inLine.has(name!)) continue;
    if (name === "br" && line.trim() === "" && !isHidden()) height += lineHeight;
    endLine();
    const last = details.at(-1);
    if (name === "details" && closing) details.pop();
    else if (name === "details") details.push({ closed: !attributes!.includes(" open="), inSummary: false });
    else if (name === "summary" && last) last.inSummary = !closing;
    if (name === "pre") isPre = !closing;
    if (name === "tr") isRow = !closing;
    if (closing || isHidden()) continue;
    height += (taller.get(name!) ?? 0) + (!isFirst && spaced.has(name!) ? gap : 0);
  }
  endLine();
  return height;
}

/**
 * Returns a document for a frame's srcdoc. The frame inherits the page's policy, so its style needs
 * the page's nonce.
 */
export function frameDocument(html: string, css: string, nonce: string): string {
  return `<!doctype html><html><head><style nonce="${nonce}">${css}</style></head><body>${cleanHTML(html)}</body></html>`;
}
