// Creates elements. Text only becomes text nodes: nothing here parses markup.

type Child = Node | string | null | undefined | false;
type Props = { [name: string]: string | number | boolean | null | undefined | ((event: never) => void) };

/**
 * Creates an element with attributes (booleans as present or absent), listeners (on…) and children.
 */
export function h<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value as EventListener);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  for (const child of children) if (child) element.append(child);
  return element;
}

/** Returns the element of the page with that id, which exists. */
export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no #${id}`);
  return element as T;
}

const paths = {
  image: "M3 3h10v10H3zM3 11l3-3 2.5 2.5L10.500 8.500 13 11M6 6.200a.6.6 0 1 1-.01 0",
  table: "M2.500 3h11v10h-11zM2.500 6.500h11M2.500 9.800h11M6.200 3v10",
  pdf: "M4 2h5l3 3v9H4zM9 2v3h3M6 8.500h4M6 11h4",
  text: "M4 2h5l3 3v9H4zM9 2v3h3M6 8h4M6 10.500h4",
  archive: "M2.500 4h11v3h-11zM3.500 7v6h9V7M6.500 9.500h3",
  other: "M4 2h5l3 3v9H4zM9 2v3h3",
  download: "M8 2.500v7.500M4.800 7 8 10.200 11.200 7M3 13h10",
  trash: "M3 4.500h10M6 4.500V3h4v1.500M4.300 4.500l.6 8.500h6.200l.6-8.500M6.800 7v3.800M9.200 7v3.800",
  copy: "M5.500 5.500h7.500v7.500H5.500zM3 10.500V3h7.500",
  check: "M3 8.500l3.200 3.200L13 5",
  close: "M4 4l8 8M12 4l-8 8",
  rerun: "M12.800 8a4.800 4.800 0 1 1-1.500-3.500M11.500 2v2.700H8.800",
  edit: "M3 13l.7-3L10.500 3.200l2.300 2.300L6 12.300z",
} as const;

export type Icon = keyof typeof paths;

export function icon(name: Icon): SVGSVGElement {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(ns, "path");
  path.setAttribute("d", paths[name]);
  svg.append(path);
  return svg;
}

/** Creates a button with an icon, and its name for people who cannot see it. */
export function iconButton(name: Icon, label: string, onclick: (event: MouseEvent) => void, testid?: string): HTMLButtonElement {
  return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, "data-testid": testid }, icon(name));
}

/** Copies text and confirms it on the button for a moment. */
export async function copy(button: HTMLButtonElement, text: string): Promise<void> {
  if (!(await toClipboard(text))) {
    announce("Copying is not allowed by the browser.");
    return;
  }
  const shown = button.querySelector("svg");
  const done = icon("check");
  if (shown && !button.dataset["copied"]) {
    button.dataset["copied"] = "true";
    shown.replaceWith(done);
    setTimeout(() => {
      done.replaceWith(shown);
      delete button.dataset["copied"];
    }, 1500);
  }
  announce("Copied.");
}

async function toClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without a secure context (plain HTTP by name) or permission: the old way.
    const area = h("textarea", { class: "visually-hidden", "aria-hidden": "true" });
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const ok = document.execCommand("copy");
    area.remove();
    return ok;
  }
}

/**
 * Renders a list again and restores the focus. A data attribute identifies a row, its position a
 * control.
 */
export function keepFocus(list: HTMLElement, attribute: string, render: () => void): void {
  const controls = (row: Element | undefined) => [...(row?.querySelectorAll<HTMLElement>("a, button") ?? [])];
  const rows = () => [...list.children] as HTMLElement[];
  const at = rows().findIndex((row) => row.contains(document.activeElement));
  const name = rows()[at]?.dataset[attribute];
  const control = controls(rows()[at]).indexOf(document.activeElement as HTMLElement);
  render();
  if (at < 0) return;
  // If the row is gone, the one in its place gets the focus.
  const row = rows().find((r) => r.dataset[attribute] === name) ?? rows()[Math.min(at, list.childElementCount - 1)];
  (controls(row)[control] ?? controls(row)[0])?.focus();
}

let announcement: ReturnType<typeof setTimeout> | undefined;

/** Announces a text to screen readers; the last of several within a moment wins. */
export function announce(text: string): void {
  clearTimeout(announcement);
  announcement = setTimeout(() => (byId("announcer").textContent = text), 150);
}

/** Asks a yes-or-no question. */
export function ask(question: string, detail: string, yes: string, kind: "danger" | "primary" = "danger"): Promise<boolean> {
  return new Promise((resolve) => {
    const confirm = h("button", { type: "submit", class: `button ${kind}`, value: "yes", "data-testid": "confirm-yes" }, yes);
    const cancel = h("button", { type: "submit", class: "button", value: "no", "data-testid": "confirm-no" }, "Cancel");
    const dialog = h(
      "dialog",
      { class: "dialog small", "aria-labelledby": "ask-title", "data-testid": "confirm-dialog" },
      h(
        "form",
        { method: "dialog" },
        h("div", {}, h("h2", { id: "ask-title" }, question), h("p", { class: "muted" }, detail)),
        h("div", { class: "actions" }, cancel, confirm),
      ),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    // A key that has been held down since before the question does not answer it.
    dialog.addEventListener("keydown", (event) => event.repeat && event.key === "Enter" && event.preventDefault());
    document.body.append(dialog);
    dialog.showModal();
    (kind === "danger" ? cancel : confirm).focus();
  });
}

/** Lets a click on the backdrop close a dialog. */
export function closeOnBackdrop(dialog: HTMLDialogElement): void {
  dialog.addEventListener("mousedown", (event) => {
    if (event.target === dialog) dialog.close();
  });
}
