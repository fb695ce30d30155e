// What came from elsewhere (the server, a proxy, this browser's storage) may be anything; it is looked at through these before it is used.

/** The members of an object; none, when it is something else. */
export function fields(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
}

export function list(value: unknown): unknown[] {
  return Array.isArray(value) ? value : [];
}

export function text(value: unknown, otherwise = ""): string {
  return typeof value === "string" ? value : otherwise;
}

export function texts(value: unknown): string[] {
  return list(value).filter((v) => typeof v === "string");
}

export function number(value: unknown): number | undefined {
  return typeof value === "number" && Number.isFinite(value) ? value : undefined;
}

/** An address, undefined when it is none. What is relative is meant for this server. */
export function address(value: unknown): URL | undefined {
  try {
    return typeof value === "string" && value !== "" ? new URL(value, location.href) : undefined;
  } catch {
    return undefined;
  }
}
