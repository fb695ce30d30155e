// The conversation's files: list, upload, download, delete.
import { announce, ask, byId, h, icon, iconButton } from "./dom.ts";
import { age, bytes, kindName, kindOf } from "./format.ts";
import { CallError, type Client } from "./mcp.ts";
import { preview } from "./preview.ts";

export interface Entry {
  name: string; // below /data
  size: number;
  mime: string;
  modified: number;
  url: string;
}

interface Artifact {
  path: string;
  size_bytes: number;
  mime_type: string;
  modified_at?: string;
  download_url?: string;
}

const root = "/mnt/data/";

export class FilesPane {
  #files: Entry[] = [];
  #truncated = false;
  #changed = new Set<string>();
  #list = byId("file-list");
  #uploads = byId("uploads");
  #latest = 0; // the refresh that counts

  constructor(
    private readonly client: Client,
    private readonly conversation: () => string,
    private readonly trouble: (err: unknown) => void,
  ) {
    const input = byId<HTMLInputElement>("upload-input");
    input.addEventListener("change", () => {
      void this.upload([...(input.files ?? [])]);
      input.value = "";
    });
    this.#acceptDrops();
    setInterval(() => this.#showAges(), 20_000);
  }

  clear(): void {
    this.#latest++;
    this.#files = [];
    this.#changed.clear();
    this.#render();
  }

  /** The files as they are, to see later what has changed. */
  snapshot(): Map<string, string> {
    return new Map(this.#files.map((f) => [f.name, `${f.modified} ${f.size}`]));
  }

  /** Asks the server for the list. With a snapshot, marks what is new or different. */
  async refresh(since?: Map<string, string>): Promise<void> {
    const turn = ++this.#latest;
    let listed: { artifacts: Artifact[]; truncated?: boolean };
    try {
      listed = await this.client.json("list_artifacts", { session_id: this.conversation() });
    } catch (err) {
      if (!(err instanceof CallError && err.code === "session_not_found")) return this.trouble(err);
      listed = { artifacts: [] };
    }
    if (turn !== this.#latest) return;
    this.#files = listed.artifacts.map((a) => ({
      name: a.path.startsWith(root) ? a.path.slice(root.length) : a.path,
      size: a.size_bytes,
      mime: a.mime_type,
      modified: a.modified_at ? Date.parse(a.modified_at) : 0,
      url: a.download_url ? ownAddress(a.download_url) : "",
    }));
    this.#truncated = listed.truncated ?? false;
    if (since) this.#changed = new Set(this.#files.filter((f) => since.get(f.name) !== `${f.modified} ${f.size}`).map((f) => f.name));
    this.#render();
  }

  #render(): void {
    byId("files-empty").hidden = this.#files.length > 0;
    byId("files-count").textContent = this.#files.length === 0 ? "" : `${this.#files.length}${this.#truncated ? "+" : ""}`;
    const focused = document.activeElement?.closest<HTMLElement>("[data-name]")?.dataset["name"];
    this.#list.replaceChildren(...this.#files.map((f) => this.#row(f)));
    if (focused !== undefined) this.#list.querySelector<HTMLElement>(`[data-name="${CSS.escape(focused)}"] button`)?.focus();
  }

  #row(f: Entry): HTMLElement {
    const changed = this.#changed.has(f.name);
    const open = h(
      "button",
      { type: "button", class: "row-main", title: f.name, "data-testid": "file-preview", onclick: () => void preview(f) },
      icon(kindOf(f.name, f.mime)),
      h("span", { class: "row-title" }, f.name),
      h("span", { class: "visually-hidden" }, kindName(f.name)), // what the icon tells
      h("span", { class: "row-sub" }, subtitle(f)),
    );
    return h(
      "li",
      { class: "row", "data-testid": "file-row", "data-name": f.name, "data-changed": changed ? "true" : null },
      open,
      h(
        "div",
        { class: "row-actions" },
        f.url && h("a", { class: "icon-button", href: f.url, download: f.name.split("/").at(-1), "aria-label": `Download ${f.name}`, title: "Download", "data-testid": "file-download" }, icon("download")),
        iconButton("trash", `Delete ${f.name}`, () => void this.#delete(f), "file-delete"),
      ),
    );
  }

  #showAges(): void {
    this.#list.querySelectorAll(".row-sub").forEach((sub, i) => {
      const f = this.#files[i];
      if (f) sub.textContent = subtitle(f);
    });
  }

  async #delete(f: Entry): Promise<void> {
    if (!(await ask("Delete this file?", `${f.name} (${bytes(f.size)}) cannot be brought back.`, "Delete"))) return;
    try {
      await this.client.call("delete_file", { session_id: this.conversation(), filename: f.name });
      announce(`${f.name} was deleted.`);
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
    if (overwrite && !(await ask("Replace this file?", `There is a ${file.name} in this conversation already.`, "Replace"))) return;
    const bar = h("progress", { max: 1, value: 0, "aria-label": `Upload of ${file.name}`, "data-testid": "upload-progress" });
    const share = h("span", { class: "muted" }, "0 %");
    const row = h("div", { class: "transfer" }, h("span", { class: "name" }, file.name), share, bar);
    this.#uploads.append(row);
    try {
      const { upload_url } = await this.client.json<{ upload_url: string }>("upload_file", { session_id: this.conversation(), filename: file.name, overwrite });
      await put(ownAddress(upload_url), file, (part) => {
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
      if (carriesFiles(event)) overlay.hidden = false;
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
        void this.upload([...(event.dataTransfer?.files ?? [])]);
      },
      { capture: true },
    );
  }
}

function subtitle(f: Entry): string {
  return f.modified ? `${bytes(f.size)} · ${age(f.modified, Date.now())}` : bytes(f.size);
}

/** Links name the server by its public address; the page uses the one that it came from. */
function ownAddress(link: string): string {
  const url = new URL(link, location.href);
  return url.pathname + url.search;
}

function put(address: string, body: Blob, progress: (part: number) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest(); // fetch tells nothing of an upload's progress
    request.open("PUT", address);
    request.upload.onprogress = (event) => event.total > 0 && progress(event.loaded / event.total);
    request.onload = () => (request.status < 300 ? resolve() : reject(new CallError("refused", request.responseText.trim() || `The server answered ${request.status}.`)));
    request.onerror = () => reject(new CallError("offline", "The connection was lost. The file may be larger than the server takes."));
    request.send(body);
  });
}
