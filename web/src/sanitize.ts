// HTML that code printed: built anew from a list of what is known to be harmless, and shown in a frame that may do nothing.

const elements = new Set(
  ("a abbr b blockquote br caption code col colgroup dd del details dfn div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 hr i ins kbd li mark ol p pre q s samp section small " +
    "span strong sub summary sup table tbody td tfoot th thead time tr u ul var article header footer").split(" "),
);
const attributes = new Set(["colspan", "rowspan", "scope", "title", "dir", "lang", "open", "start", "reversed", "align", "valign"]);

// What is inside these is not text for people.
const silent = new Set("script style template noscript iframe object embed svg math head title textarea select button input audio video canvas link meta base".split(" "));

const depth = 200;

/** Copies the harmless part of from's children into to. */
function rebuild(from: Node, to: Node, into: Document, level: number): void {
  if (level > depth) return;
  for (const node of from.childNodes) {
    if (node.nodeType === Node.TEXT_NODE) {
      to.appendChild(into.createTextNode(node.nodeValue ?? ""));
      continue;
    }
    if (!(node instanceof Element)) continue;
    const name = node.localName;
    if (silent.has(name)) continue;
    if (!elements.has(name)) {
      rebuild(node, to, into, level + 1);
      continue;
    }
    const copy = into.createElement(name);
    for (const { name: attribute, value } of node.attributes) if (attributes.has(attribute)) copy.setAttribute(attribute, value);
    rebuild(node, copy, into, level + 1);
    to.appendChild(copy);
  }
}

/** A document for a frame's srcdoc. The frame has the page's policy, so its style needs the page's nonce. */
export function frameDocument(html: string, css: string, nonce: string): string {
  const parsed = new DOMParser().parseFromString(html, "text/html"); // runs and loads nothing
  const clean = document.implementation.createHTMLDocument("");
  const style = clean.createElement("style");
  style.setAttribute("nonce", nonce);
  style.textContent = css;
  clean.head.append(style);
  rebuild(parsed.body, clean.body, clean, 0);
  return "<!doctype html>" + clean.documentElement.outerHTML;
}
