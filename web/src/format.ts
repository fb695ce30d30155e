// Formats sizes, times and durations.

export function bytes(n: number): string {
  if (n < 1000) return `${n} B`;
  const units = ["KB", "MB", "GB", "TB"];
  let unit = -1;
  do {
    n /= 1024;
    unit++;
  } while (n >= 999.5 && unit < units.length - 1);
  return `${n < 9.95 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

export function duration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(ms < 9_995 ? 2 : 1)} s`;
  const s = Math.round(ms / 1000);
  return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
}

export function age(then: number, now: number): string {
  const s = Math.max(0, Math.round((now - then) / 1000));
  if (s < 5) return "just now";
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ago`;
  const days = Math.floor(s / 86_400);
  return days < 14 ? `${days} d ago` : new Date(then).toISOString().slice(0, 10);
}

/** Why a run ended other than by itself. */
const causes = new Map(Object.entries({
  timeout: "Time limit reached",
  cancelled: "Stopped",
  out_of_memory: "Out of memory",
  output_limit: "Too much output",
  disk_quota: "Disk quota exceeded",
  pids_limit: "Too many processes",
  killed: "Killed",
  sandbox_lost: "Sandbox lost",
  preempted: "Stopped to make room for another user",
}));

export function causeText(cause: string): string {
  return causes.get(cause) ?? cause.replaceAll("_", " ");
}

/** Adds a capital letter at the start and a full stop at the end. */
export function sentence(text: string): string {
  return text && text.charAt(0).toUpperCase() + text.slice(1) + (text.endsWith(".") ? "" : ".");
}

/** Makes invisible characters, and those that change the text direction, visible. */
export function visible(name: string): string {
  return name.replace(/[\p{C}\u2028\u2029]/gu, "\ufffd");
}

/** The kind of a file, for its icon and preview. */
export type Kind = "image" | "table" | "pdf" | "text" | "archive" | "other";

/** Describes the kind in a word: most people know files by their extension. */
export function kindName(name: string): string {
  return /\.([a-z0-9]{1,5})$/i.exec(name)?.[1]?.toUpperCase() ?? "file";
}

export function kindOf(name: string, mime: string): Kind {
  const ext = /\.([a-z0-9]+)$/i.exec(name)?.[1]?.toLowerCase() ?? "";
  if (/^image\/(png|jpeg|gif|webp|svg\+xml|avif|bmp)$/.test(mime) || ["png", "jpg", "jpeg", "gif", "webp", "svg", "avif", "bmp"].includes(ext)) return "image";
  if (["csv", "tsv"].includes(ext) || mime === "text/csv") return "table";
  if (ext === "pdf" || mime === "application/pdf") return "pdf";
  if (mime.startsWith("text/") || /json|xml|yaml|javascript|typescript/.test(mime)) return "text";
  if (/^(py|ts|js|mjs|jsx|tsx|sh|md|txt|log|json|jsonl|ndjson|yml|yaml|toml|ini|cfg|xml|html|css|sql|r|go|rs|c|h|env)$/.test(ext)) return "text";
  if (/^(zip|gz|tgz|bz2|xz|7z|tar|zst)$/.test(ext)) return "archive";
  return "other";
}
