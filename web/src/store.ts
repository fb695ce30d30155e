// What the page remembers in this browser. Where storage is not allowed, it remembers nothing, and works.

export interface Cell {
  id: number;
  language: string;
  code: string;
  keep: boolean;
  at: number;
  outcome: "ok" | "failed" | "stopped" | "error";
  duration: number;
}

const recentSessions = 30;
const recentCells = 50;
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
      // Full, or forbidden. What was kept of the conversation that was used longest ago makes way.
      const oldest = conversations.recent().findLast((id) => read(device, `code:${id}`, null) ?? read(device, `cells:${id}`, null));
      if (oldest === undefined || key.endsWith(`:${oldest}`)) return;
      forget(oldest);
    }
  }
}

const tab = () => sessionStorage;
const device = () => localStorage;

/** The API key: of this tab, or of this device where the person said so. */
export const key = {
  get: (): string => read(tab, "key", "") || read(device, "key", ""),
  remembered: (): boolean => read(device, "key", "") !== "",
  /** For this tab; what the device remembers stays. */
  setForTab: (value: string): void => write(tab, "key", value),
  /** Gives up the tab's key for the device's, and reports whether there is one. */
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

/** Environment variables may be secrets: they go with the tab. */
export const environment = {
  get: (): [name: string, value: string][] => read(tab, "environment", []),
  set: (vars: [string, string][]): void => write(tab, "environment", vars),
};

/** What else goes with runs, until the tab is closed. */
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

/** The conversation of this tab, and the ones this browser has used. */
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

/** Code is kept per conversation and language. */
export const code = {
  get: (conversation: string, language: string): string | undefined => new Map(Object.entries(read<Record<string, string>>(device, `code:${conversation}`, {}))).get(language),
  set: (conversation: string, language: string, text: string): void =>
    write(device, `code:${conversation}`, { ...read<Record<string, string>>(device, `code:${conversation}`, {}), [language]: text }),
};

export const cells = {
  get: (conversation: string): Cell[] => read(device, `cells:${conversation}`, []),
  set: (conversation: string, all: Cell[]): void => write(device, `cells:${conversation}`, all.slice(-recentCells)),
};

function forget(conversation: string): void {
  write(device, `code:${conversation}`, undefined);
  write(device, `cells:${conversation}`, undefined);
}
