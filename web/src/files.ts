// The conversation's files: list, upload, download, delete.
import { showBanner } from "./connection.ts";
import { announce, ask, byId, h, icon, iconButton, keepFocus } from "./dom.ts";
import { age, bytes, kindName, kindOf, sentence, visible } from "./format.ts";
import { CallError, type Client } from "./mcp.ts";
import { preview } from "./preview.ts";
import { listedOf, type Listed } from "./runs.ts";
import { fields, fileAddress, list, number, text } from "./shape.ts";

export interface Entry {
  name: string; // below /data
  size: number;
  mime: string;
  modified: number;
  url: string;
}

/** What the server's tools allow the pane to do. */
export interface Abilities {
  list: boolean;
  upload: boolean;
  remove: boolean;
}

const root = "/mnt/data/";

type Mark = "new" | "changed";

export class FilesPane {
  #files: Entry[] = [];
  #loaded = false; // whether the files of this conversation have been listed
  #truncated = false;
  #marks = new Map<string, Mark>();
  #list = byId("file-list");
  #uploads = byId("uploads");
  #latest = 0; // number of the last refresh; older answers are dropped
  #can: Abilities = { list: true, upload: true, remove: true };

  constructor(
    private readonly client: Client,
    private readonly conversation: () => string,
    private readonly trouble: (err: unknown) => void,
    private readonly listed: (runs: Listed[]) => void,
  ) {
    const input = byId<HTMLInputElement>("upload-input");
    input.addEventListener("change", () => {
      void this.upload([...(input.files ?? [])]);
      input.value = "";
    });
    this.#acceptDrops();
    setInterval(() => this.#showAges(), 20_000);
  }

  /** Removes controls that the server has no tool for, and says so. */
  set abilities(can: Abilities) {
    this.#can = can;
    byId("upload-input").hidden = !can.upload;
    byId("upload-label").hidden = !can.upload;
    const empty = byId("files-empty");
    if (!can.list) empty.replaceChildren("This server does not list files: its tool ", h("code", {}, "list_artifacts"), " is switched off.");
    else if (!can.upload) empty.replaceChildren("Files that the code writes to ", h("code", {}, "/data"), " are listed here.");
    else empty.replaceChildren("Drop files here to use them in ", h("code", {}, "/data"), ".");
    this.#render();
  }

  clear(): void {
    this.#latest++;
    this.#files = [];
    this.#loaded = false;
    this.#marks.clear();
    this.#render();
  }

  /** Clears the marks: only later changes are new. */
  settle(): void {
    this.#marks.clear();
    this.#render();
  }

  /** Fetches the list and marks what is new or different since the last time. */
  async refresh(): Promise<void> {
    if (!this.#can.list) return;
    const turn = ++this.#latest;
    let listed: Record<string, unknown> = {};
    let runs: unknown;
    try {
      const result = await this.client.call("list_artifacts", { session_id: this.conversation() }, { details: true });
      listed = fields(result.structured);
      runs = result.meta["mcp-code-sandbox/runs"];
    } catch (err) {
      if (!(err instanceof CallError && err.code === "session_not_found")) return this.trouble(err);
    }
    if (turn !== this.#latest) return;
    const before = new Map(this.#files.map((f) => [f.name, versionOf(f)]));
    this.#files = list(listed["artifacts"]).map(fields).map(entryOf).filter((f) => f.name !== "");
    this.#truncated = listed["truncated"] === true;
    for (const f of this.#loaded ? this.#files : []) {
      if (!before.has(f.name)) this.#marks.set(f.name, "new");
      else if (before.get(f.name) !== versionOf(f) && this.#marks.get(f.name) !== "new") this.#marks.set(f.name, "changed");
    }
    this.#loaded = true;
    this.#render();
    this.listed(listedOf(runs));
  }

  #render(): void {
    byId("files-empty").hidden = this.#files.length > 0;
    byId("files-count").textContent = this.#files.length === 0 ? "" : `${this.#files.length}${this.#truncated ? "+" : ""}`;
    keepFocus(this.#list, "name", () => this.#list.replaceChildren(...this.#files.map((f) => this.#row(f))));
  }

  #row(f: Entry): HTMLElement {
    const mark = this.#marks.get(f.name);
    const open = h(
      "button",
      { type: "button", class: "row-main", title: visible(f.name), "data-testid": "file-preview", onclick: () => void preview(f) },
      icon(kindOf(f.name, f.mime)),
      h("span", { class: "row-title" }, visible(f.name)),
      h("span", { class: "visually-hidden" }, kindName(f.name)), // the icon's meaning
      h("span", { class: "row-sub" }, h("span", {}, subtitle(f)), mark && h("span", { class: "mark" }, mark)),
    );
    return h(
      "li",
      { class: "row", "data-testid": "file-row", "data-name": f.name, "data-mark": mark ?? null },
      open,
      h(
        "div",
        { class: "row-actions" },
        f.url && h("a", { class: "icon-button", href: f.url, download: f.name.split("/").at(-1), "aria-label": `Download ${visible(f.name)}`, title: "Download", "data-testid": "file-download" }, icon("download")),
        this.#can.remove && iconButton("trash", `Delete ${visible(f.name)}`, () => void this.#delete(f), "file-delete"),
      ),
    );
  }

  #showAges(): void {
    this.#list.querySelectorAll(".row-sub > :first-child").forEach((sub, i) => {
      const f = this.#files[i];
      if (f) sub.textContent = subtitle(f);
    });
  }

  async #delete(f: Entry): Promise<void> {
    if (!(await ask("Delete this file?", `${visible(f.name)} (${bytes(f.size)}) cannot be brought back.`, "Delete"))) return;
    try {
      await this.client.call("delete_file", { session_id: this.conversation(), filename: f.name });
      announce(`${visible(f.name)} was deleted.`);
      // Not the next file's delete button: another Enter would delete that file.
      this.#list.querySelector<HTMLElement>(`[data-name="${CSS.escape(f.name)}"] .row-main`)?.focus();
    } catch (err) {
      if (!(err instanceof CallError && err.code === "not_found")) this.trouble(err);
    }
    await this.refresh();
  }

  async upload(files: File[]): Promise<void> {
    for (const file of files) await this.#uploadOne(file);
    await this.refresh();
  }

  async #uploadOne(file: File): Promise<void> {
    const overwrite = this.#files.some((f) => f.name === file.name);
    if (overwrite && !(await ask("Replace this file?", `This conversation already has a file ${visible(file.name)}.`, "Replace"))) return;
    const bar = h("progress", { max: 1, value: 0, "aria-label": `Upload of ${file.name}`, "data-testid": "upload-progress" });
    const share = h("span", { class: "muted" }, "0 %");
    const row = h("div", { class: "transfer" }, h("span", { class: "name" }, visible(file.name)), share, bar);
    this.#uploads.append(row);
    try {
      const { upload_url } = await this.client.json("upload_file", { session_id: this.conversation(), filename: file.name, overwrite });
      const place = fileAddress(upload_url);
      if (place === "") throw new CallError("refused", "The server did not say where to send the file.");
      await put(place, file, (part) => {
        bar.value = part;
        share.textContent = `${Math.round(part * 100)} %`;
      });
      announce(`${file.name} was uploaded.`);
      row.remove();
    } catch (err) {
      row.dataset["failed"] = "true";
      bar.remove();
      share.replaceWith(iconButton("close", "Dismiss", () => row.remove()));
      row.append(h("span", { role: "alert" }, (err as Error).message));
      if (err instanceof CallError && err.trouble !== "refused") this.trouble(err);
    }
  }

  #acceptDrops(): void {
    const overlay = byId("drop");
    const carriesFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;
    addEventListener("dragenter", (event) => {
      if (carriesFiles(event)) overlay.hidden = !this.#can.upload || document.querySelector("dialog[open]") !== null;
    });
    addEventListener("dragover", (event) => {
      if (carriesFiles(event)) event.preventDefault();
    });
    addEventListener("dragleave", (event) => {
      if (event.relatedTarget === null) overlay.hidden = true;
    });
    // Before the editor, which would insert the file as text.
    addEventListener(
      "drop",
      (event) => {
        overlay.hidden = true;
        if (!carriesFiles(event)) return;
        event.preventDefault();
        event.stopPropagation();
        if (this.#can.upload && !document.querySelector("dialog[open]")) void this.upload(dropped(event.dataTransfer!));
      },
      { capture: true },
    );
  }
}

/**
 * Returns the files of a drop. Folders appear as unreadable files, so they are left out with a
 * message.
 */
function dropped(data: DataTransfer): File[] {
  const items = [...data.items].filter((item) => item.kind === "file");
  const files = items.filter((item) => !item.webkitGetAsEntry()?.isDirectory).flatMap((item) => item.getAsFile() ?? []);
  if (files.length < items.length) showBanner("error", "Folders cannot be uploaded. Drop the files that are in them, or an archive.");
  return files;
}

function versionOf(f: Entry): string {
  return `${f.modified} ${f.size}`;
}

function subtitle(f: Entry): string {
  return f.modified ? `${bytes(f.size)} · ${age(f.modified, Date.now())}` : bytes(f.size);
}

function entryOf(a: Record<string, unknown>): Entry {
  const path = text(a["path"]);
  return {
    name: path.startsWith(root) ? path.slice(root.length) : path,
    size: number(a["size_bytes"]) ?? 0,
    mime: text(a["mime_type"]),
    modified: Date.parse(text(a["modified_at"])) || 0,
    url: fileAddress(a["download_url"]),
  };
}

function put(address: string, body: Blob, progress: (part: number) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest(); // fetch reports no upload progress
    request.open("PUT", address);
    request.upload.onprogress = (event) => event.total > 0 && progress(event.loaded / event.total);
    request.onload = () => (request.status < 300 ? resolve() : reject(new CallError("refused", sentence(request.responseText.trim()) || `The server answered ${request.status}.`)));
    request.onerror = () => reject(new CallError("offline", "The connection was lost. The file may be larger than the server accepts."));
    request.send(body);
  });
}
