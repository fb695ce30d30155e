// Data from elsewhere (the server, a proxy, this browser's storage) may have any shape. These
// functions check it before it is used.

/** Returns the members of an object, or none if it is something else. */
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

/**
 * Returns an address, or undefined if it is not valid. A relative address belongs to this server.
 */
export function address(value: unknown): URL | undefined {
  try {
    return typeof value === "string" && value !== "" ? new URL(value, location.href) : undefined;
  } catch {
    return undefined;
  }
}

/**
 * Links name the server by its public address; the page uses its own. Returns an empty text if it
 * is not a link to a file.
 */
export function fileAddress(link: unknown): string {
  const url = address(link);
  return url?.pathname.startsWith("/files/") ? url.pathname + url.search : "";
}
