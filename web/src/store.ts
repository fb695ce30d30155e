// What the page stores in this browser. It also works without storage. Tabs
// share the device's storage, so each has its own key for what two tabs could write at once.
import { fields, number, text, texts } from "./shape.ts";

export type Outcome = "running" | "ok" | "failed" | "stopped" | "error" | "lost";

/** One run of a conversation. */
export interface Cell {
  id: string;
  runId: string; // empty until the server sends it
  language: string;
  code: string; // empty if another client ran it
  foreign: boolean; // another client ran it
  keep: boolean;
  at: number;
  outcome: Outcome;
  cause: string; // why it did not end by itself
  duration: number;
}

const recentSessions = 30;
const recentCells = 50;
const recentDrafts = 5; // kept for each conversation and language
const prefix = "sandbox:";

function read<T>(storage: () => Storage, key: string, otherwise: T): T {
  try {
    const text = storage().getItem(prefix + key);
    return text === null ? otherwise : (JSON.parse(text) as T);
  } catch {
    return otherwise;
  }
}

function write(storage: () => Storage, key: string, value: unknown): void {
  for (let tries = 0; tries < recentSessions; tries++) {
    try {
      if (value === undefined) storage().removeItem(prefix + key);
      else storage().setItem(prefix + key, JSON.stringify(value));
      return;
    } catch {
      // Full or forbidden. The least recently used conversation makes room.
      const oldest = conversations.recent().findLast((id) => keysOf(id).length > 0);
      if (oldest === undefined || key.includes(`/${oldest}/`)) return;
      forget(oldest);
    }
  }
}

/** Returns the device's keys with this prefix, without the page's own prefix. */
function keys(start: string): string[] {
  try {
    return Object.keys(localStorage).filter((k) => k.startsWith(prefix + start)).map((k) => k.slice(prefix.length));
  } catch {
    return [];
  }
}

const tab = () => sessionStorage;
const device = () => localStorage;

/** The API key: of this tab, or of this device if the person chose so. */
export const key = {
  get: (): string => read(tab, "key", "") || read(device, "key", ""),
  remembered: (): boolean => read(device, "key", "") !== "",
  /** For this tab only; the device's key stays. */
  setForTab: (value: string): void => write(tab, "key", value),
  /** Replaces the tab's key with the device's. Returns whether there is one. */
  fallBack(): boolean {
    const had = read(tab, "key", "") !== "" && key.remembered();
    if (had) write(tab, "key", undefined);
    return had;
  },
  set(value: string, remember: boolean): void {
    write(tab, "key", remember ? undefined : value);
    write(device, "key", remember ? value : undefined);
  },
  forget(): void {
    write(tab, "key", undefined);
    write(device, "key", undefined);
  },
};

/** Environment variables may be secrets: they end with the tab. */
export const environment = {
  get: (): [name: string, value: string][] => read(tab, "environment", []),
  set: (vars: [string, string][]): void => write(tab, "environment", vars),
};

/** Other settings of runs, until the tab is closed. */
export interface RunSettings {
  network?: boolean;
  timeout?: number; // seconds
  services?: string[];
}

export const runSettings = {
  get: (): RunSettings => read(tab, "settings", {}),
  set: (change: RunSettings): void => write(tab, "settings", { ...runSettings.get(), ...change }),
};

export interface Preferences {
  language?: string;
  keep?: boolean;
}

export const preferences = {
  get: (): Preferences => read(device, "preferences", {}),
  set: (change: Preferences): void => write(device, "preferences", { ...preferences.get(), ...change }),
};

/** The conversation of this tab, and those that this browser has used. */
export const conversations = {
  current: (): string => read(tab, "conversation", "") || conversations.recent()[0] || "",
  recent: (): string[] => read(device, "conversations", []),
  use(id: string): void {
    write(tab, "conversation", id);
    const all = [id, ...conversations.recent().filter((other) => other !== id)];
    write(device, "conversations", all.slice(0, recentSessions));
    for (const old of all.slice(recentSessions)) forget(old);
  },
};

export function newId(): string {
  return [...crypto.getRandomValues(new Uint8Array(6))].map((b) => b.toString(16).padStart(2, "0")).join("");
}

/**
 * Identifies this tab, also after a reload. A duplicated tab has a copy of the other's storage and
 * takes a new id.
 */
let tabId = read(tab, "tab", "") || newId();
write(tab, "tab", tabId);
const asked = newId();
const tabs = new BroadcastChannel("sandbox:tabs");
tabs.onmessage = ({ data }) => {
  const said = fields(data);
  if (said["tab"] !== tabId || said["asked"] === asked) return;
  if (said["question"] === true) {
    tabs.postMessage({ tab: tabId, to: said["asked"] });
  } else if (said["to"] === asked) {
    tabId = newId();
    write(tab, "tab", tabId);
  }
};
tabs.postMessage({ tab: tabId, asked, question: true });

export interface Draft {
  language: string;
  text: string;
  at: number;
  mine: boolean; // written in this tab
}

/** Unfinished code, for each conversation, language and tab. */
export const drafts = {
  /** This tab's draft first, then the newest. */
  all(conversation: string): Draft[] {
    const found = keys(`draft/${conversation}/`).map((k) => {
      const [, , language, writer] = k.split("/");
      const draft = fields(read<unknown>(device, k, {}));
      return { language: language ?? "", text: text(draft["text"]), at: number(draft["at"]) ?? 0, mine: writer === tabId };
    });
    // The format of earlier versions.
    for (const [language, old] of Object.entries(fields(read<unknown>(device, `code:${conversation}`, {})))) found.push({ language, text: text(old), at: 0, mine: false });
    return found.sort((a, b) => Number(b.mine) - Number(a.mine) || b.at - a.at);
  },
  get: (conversation: string, language: string): string | undefined => drafts.all(conversation).find((d) => d.language === language)?.text,
  /** The last language that was written in. */
  language: (conversation: string): string | undefined => drafts.all(conversation)[0]?.language,
  set(conversation: string, language: string, written: string): void {
    const start = `draft/${conversation}/${language}/`;
    write(device, start + tabId, { text: written, at: Date.now() });
    const old = keys(start).map((k) => ({ k, at: number(fields(read<unknown>(device, k, {}))["at"]) ?? 0 }));
    for (const { k } of old.sort((a, b) => b.at - a.at).slice(recentDrafts)) write(device, k, undefined);
  },
};

/** The runs of a conversation, each under its own key. */
export const cells = {
  /** Oldest first. */
  all(conversation: string): Cell[] {
    splitOld(conversation);
    const found = keys(`cell/${conversation}/`).map((k) => cellOf(read<unknown>(device, k, {}))).filter((c) => c.id !== "");
    return found.sort((a, b) => a.at - b.at);
  },
  put(conversation: string, cell: Cell): void {
    write(device, `cell/${conversation}/${cell.id}`, cell);
    // Runs of other clients never displace runs of this browser.
    const alike = cells.all(conversation).filter((c) => c.foreign === cell.foreign);
    for (const old of alike.slice(0, -recentCells)) write(device, `cell/${conversation}/${old.id}`, undefined);
  },
  /** Changes a cell unless it has been removed meanwhile. */
  update(conversation: string, id: string, change: Partial<Cell>): void {
    const k = `cell/${conversation}/${id}`;
    const cell = cellOf(read<unknown>(device, k, {}));
    if (cell.id !== "") write(device, k, { ...cell, ...change });
  },
  /** Removes all cells and returns a function that restores them. The runs are not listed again. */
  clear(conversation: string, runIds: string[]): () => void {
    const [all, cleared] = [cells.all(conversation), cells.cleared(conversation)];
    for (const k of keys(`cell/${conversation}/`)) write(device, k, undefined);
    write(device, `cleared/${conversation}/`, runIds);
    return () => {
      for (const cell of all) write(device, `cell/${conversation}/${cell.id}`, cell);
      write(device, `cleared/${conversation}/`, cleared);
    };
  },
  cleared: (conversation: string): string[] => texts(read<unknown>(device, `cleared/${conversation}/`, [])),
  /** Calls changed when another tab has changed the runs of a conversation. */
  watch(changed: (conversation: string) => void): void {
    addEventListener("storage", (event) => {
      if (event.key?.startsWith(`${prefix}cell/`)) changed(event.key.slice(prefix.length).split("/")[1] ?? "");
    });
  },
};

const outcomes = new Set<string>(["running", "ok", "failed", "stopped", "error", "lost"]);

function cellOf(value: unknown): Cell {
  const c = fields(value);
  const outcome = text(c["outcome"]);
  return {
    id: text(c["id"]), runId: text(c["runId"]), language: text(c["language"]), code: text(c["code"]), foreign: c["foreign"] === true, keep: c["keep"] === true,
    at: number(c["at"]) ?? 0, outcome: outcomes.has(outcome) ? (outcome as Outcome) : "error", cause: text(c["cause"]), duration: number(c["duration"]) ?? 0,
  };
}

/** Migrates the history of earlier versions, which was one piece. */
function splitOld(conversation: string): void {
  const old = read<unknown>(device, `cells:${conversation}`, undefined);
  if (old === undefined) return;
  write(device, `cells:${conversation}`, undefined);
  for (const [i, value] of (Array.isArray(old) ? old : []).entries()) {
    const cell = { ...cellOf(value), id: `old-${i}` };
    write(device, `cell/${conversation}/${cell.id}`, cell);
  }
}

function keysOf(conversation: string): string[] {
  return [...keys(`draft/${conversation}/`), ...keys(`cell/${conversation}/`), ...keys(`cleared/${conversation}/`), ...[`code:${conversation}`, `cells:${conversation}`].filter((k) => read(device, k, undefined) !== undefined)];
}

function forget(conversation: string): void {
  for (const k of keysOf(conversation)) write(device, k, undefined);
}
