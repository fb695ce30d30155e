// Reads the Markdown that notebooks show: headings, paragraphs, lists, code, quotes, tables, emphasis.
// Web links are links. Other links and images show their text, and everything else stays as it is
// written.

/** A node is text, or an element with one of the tags below. Only an "a" has an address. */
export type Node = string | { tag: Tag; children: Node[]; href?: string };
export type Tag = "a" | "h2" | "h3" | "h4" | "p" | "ul" | "ol" | "li" | "pre" | "blockquote" | "hr" | "code" | "strong" | "em" | "s" | "table" | "thead" | "tbody" | "tr" | "th" | "td" | "br";

const deepest = 8; // levels of quotes, lists and emphasis

/** Returns the blocks of a text. */
export function parseMarkdown(text: string): Node[] {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

function blocks(lines: string[], depth: number): Node[] {
  const out: Node[] = [];
  for (let i = 0; i < lines.length; ) {
    const line = lines[i]!;
    const fence = /^ {0,3}(`{3,}|~{3,})/.exec(line)?.[1];
    const heading = /^ {0,3}(#{1,6})[ \t]/.exec(line);
    if (line.trim() === "") {
      i++;
    } else if (fence) {
      const end = endOf(lines, i + 1, (l) => !l.trim().startsWith(fence));
      out.push(element("pre", [lines.slice(i + 1, end).join("\n")]));
      i = end + 1;
    } else if (heading) {
      out.push(element((["h2", "h3"] as const)[heading[1]!.length - 1] ?? "h4", inline(withoutEnd(line.slice(heading[0].length)))));
      i++;
    } else if (/^ {0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) {
      out.push(element("hr"));
      i++;
    } else if (isTable(lines, i)) {
      const end = endOf(lines, i, (l) => l.includes("|"));
      out.push(table(lines.slice(i, end)));
      i = end;
    } else if (depth < deepest && /^ {0,3}>/.test(line)) {
      const end = endOf(lines, i, (l) => /^ {0,3}>/.test(l));
      out.push(element("blockquote", blocks(lines.slice(i, end).map((l) => l.replace(/^ {0,3}> ?/, "")), depth + 1)));
      i = end;
    } else if (depth < deepest && item.test(line)) {
      const end = endOf(lines, i, (l) => item.test(l) || /^\s+\S/.test(l));
      out.push(listOf(lines.slice(i, end), depth));
      i = end;
    } else {
      const end = Math.max(i + 1, endOf(lines, i, (l, k) => l.trim() !== "" && !/^ {0,3}(#{1,6}\s|>|`{3}|~{3})/.test(l) && !item.test(l) && !isTable(lines, k)));
      out.push(element("p", inline(lines.slice(i, end).map((l) => l.replace(/^\s+/, "")).join("\n").trimEnd())));
      i = end;
    }
  }
  return out;
}

const item = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+/;

function isTable(lines: string[], at: number): boolean {
  const ruler = (lines[at + 1] ?? "").trim().replace(/^\|/, "");
  const columns = (ruler.endsWith("|") ? ruler.slice(0, -1) : ruler).split("|");
  return lines[at]!.includes("|") && columns.every((c) => /^:?-+:?$/.test(c.trim()));
}

/** Returns the text of a heading without the #s that may follow it. */
function withoutEnd(text: string): string {
  const trimmed = text.trim();
  let end = trimmed.length;
  while (trimmed[end - 1] === "#") end--;
  return trimmed.slice(0, end).trimEnd();
}

function endOf(lines: string[], from: number, goesOn: (line: string, at: number) => boolean): number {
  let end = from;
  while (end < lines.length && goesOn(lines[end]!, end)) end++;
  return end;
}

function listOf(lines: string[], depth: number): Node {
  const [, indent, number] = item.exec(lines[0]!)!;
  const starts = lines.flatMap((l, i) => ((item.exec(l)?.[1]!.length ?? Infinity) <= indent!.length ? [i] : []));
  const items = starts.map((start, n) => {
    const [first, ...rest] = lines.slice(start, starts[n + 1]);
    const own = first!.replace(item, "");
    const nested = rest.findIndex((l) => item.test(l));
    const text = [own, ...rest.slice(0, nested < 0 ? undefined : nested).map((l) => l.trim())].join("\n");
    return element("li", [...inline(text), ...(nested < 0 ? [] : blocks(rest.slice(nested), depth + 1))]);
  });
  return element(number ? "ol" : "ul", items);
}

function table(lines: string[]): Node {
  const cells = (line: string) => line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((c) => inline(c.trim().replaceAll("\\|", "|")));
  const row = (line: string, tag: "th" | "td") => element("tr", cells(line).map((c) => element(tag, c)));
  return element("table", [element("thead", [row(lines[0]!, "th")]), element("tbody", lines.slice(2).map((l) => row(l, "td")))]);
}

// Each alternative needs its end on the same line or the next ones of the paragraph, within 500
// characters: the text is hostile, so nothing here may take more than linear time.
const spans = new RegExp(
  [
    /(?<!`)(`+)(?!`)([^`]{1,500}?)\1(?!`)/,
    /\*\*(?=\S)([^]{0,500}?\S)\*\*/,
    /__(?=\S)([^]{0,500}?\S)__/,
    /~~(?=\S)([^]{0,500}?\S)~~/,
    /\*(?=[^\s*])([^*]{0,500}?[^\s*])\*/,
    /(?<!\w)_(?=[^\s_])([^_]{0,500}?[^\s_])_(?!\w)/,
    /(!?)\[([^\[\]]{0,500})\]\(((?:[^()\s]|\([^()\s]{0,100}\)){0,500})(?:\s{1,10}"[^"]{0,200}")?\)/,
    /<(https?:\/\/[^\s<>]{1,500})>/,
    /\\([!-/:-@[-`{-~])/,
    /(?: {2}|\\)\n/,
  ].map((alternative) => alternative.source).join("|"),
  "g",
);

/** Returns the nodes of a text. There is no link within a link. */
function inline(text: string, depth = 0, linked = false): Node[] {
  if (depth > deepest) return [text];
  const out: Node[] = [];
  let at = 0;
  for (const match of text.matchAll(spans)) {
    if (match.index > at) out.push(text.slice(at, match.index));
    at = match.index + match[0].length;
    const [, , code, strong, strong2, struck, em, em2, image, label, target, auto, escaped] = match;
    const inner = (s: string) => inline(s, depth + 1, linked);
    if (code !== undefined) out.push(element("code", [code.trim()]));
    else if (strong ?? strong2) out.push(element("strong", inner((strong ?? strong2)!)));
    else if (struck) out.push(element("s", inner(struck)));
    else if (em ?? em2) out.push(element("em", inner((em ?? em2)!)));
    else if (label !== undefined) {
      const href = linked || image || label.trim() === "" ? undefined : webAddress(target!);
      out.push(...(href === undefined ? inner(label) : [{ tag: "a" as const, href, children: inline(label, depth + 1, true) }]));
    } else if (auto !== undefined) {
      const href = linked ? undefined : webAddress(auto);
      out.push(href === undefined ? auto : { tag: "a", href, children: [auto] });
    } else if (escaped !== undefined) out.push(escaped);
    else out.push(element("br"));
  }
  if (at < text.length) out.push(text.slice(at));
  return out;
}

/**
 * Returns the whole address of a web page, or undefined. A name before an @ could look like the
 * host, so such an address is none.
 */
function webAddress(text: string): string | undefined {
  if (!/^https?:\/\//i.test(text) || !URL.canParse(text)) return undefined;
  const url = new URL(text);
  return url.username === "" && url.password === "" ? url.href : undefined;
}

function element(tag: Tag, children: Node[] = []): Node {
  return { tag, children };
}
