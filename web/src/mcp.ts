// The page's only connection to the server: MCP over HTTP, without a session, one POST per call.
import { fields, list, number, text, texts } from "./shape.ts";
import { eventParser } from "./sse.ts";

const endpoint = "/mcp";
const detailsKey = "mcp-code-sandbox/details";
const version = "2025-11-25";

/** The kinds of failed calls, by what can be done about them. */
export type Trouble = "key" | "offline" | "busy" | "refused" | "aborted";

export class CallError extends Error {
  constructor(
    readonly trouble: Trouble,
    message: string,
    readonly code = "",
  ) {
    super(message);
  }
}

export type Content = { type: "text"; text: string } | { type: "image"; data: string; mimeType: string };

export interface ToolResult {
  content: Content[];
  structured: unknown; // undefined when there is none
  meta: Record<string, unknown>;
}

export interface Argument {
  maximum: number | undefined;
  choices: string[];
}

/** The arguments that a tool takes, by name. */
export type Tool = Map<string, Argument>;

export interface Progress {
  message: string;
  meta: Record<string, unknown>;
}

export interface CallOptions {
  signal?: AbortSignal;
  onProgress?: (progress: Progress) => void;
  /** Requests all details of a run. */
  details?: boolean;
  /** The page's own tag for the run that the call starts. */
  tag?: string;
}

export class Client {
  /** The last key that the server refused. */
  refused = "";
  /** Whether the server sends details of runs, and no proxy removes them. */
  detailed = false;
  #next = 1;

  constructor(private readonly token: () => string) {}

  /** Returns the tools that the server offers, by name. */
  async tools(): Promise<Map<string, Tool>> {
    const { tools, _meta } = fields(await this.#request("tools/list", { _meta: { [detailsKey]: true } }, {}));
    this.detailed = fields(_meta)[detailsKey] === true;
    return new Map(list(tools).map(fields).map((tool) => [text(tool["name"]), toolOf(fields(tool["inputSchema"]))]));
  }

  /** Calls a tool. It throws a refusal, with its code. */
  async call(name: string, args: object, options: CallOptions = {}): Promise<ToolResult> {
    const meta: Record<string, unknown> = {};
    if (options.onProgress) meta["progressToken"] = `p${this.#next}`;
    if (options.details) meta[detailsKey] = true;
    if (options.tag) meta["mcp-code-sandbox/tag"] = options.tag;
    const answered = fields(await this.#request("tools/call", { name, arguments: args, _meta: meta }, options));
    const result = { content: list(answered["content"]).flatMap(contentOf), structured: answered["structuredContent"], meta: fields(answered["_meta"]) };
    if (answered["isError"] === true) throw refusal(result);
    return result;
  }

  /** Returns the JSON answer of a tool. */
  async json(name: string, args: object): Promise<Record<string, unknown>> {
    const result = await this.call(name, args);
    return fields(result.structured ?? parsed(textOf(result)));
  }

  /**
   * Stays connected until the server goes away or signal is aborted, then returns or throws. It
   * calls changed when files change, or when a run of any client starts or ends.
   */
  async presence(signal: AbortSignal, connected: () => void, changed: () => void): Promise<void> {
    const session = await this.#openSession(signal);
    const about: Record<string, string> = session === "" ? {} : { "Mcp-Session-Id": session, "MCP-Protocol-Version": version };
    try {
      const response = await this.#fetch(session === "" ? `${endpoint}/events` : endpoint, { signal, headers: { Accept: "text/event-stream", ...about } });
      connected();
      const parse = eventParser();
      const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read().catch(() => ({ done: true, value: undefined })); // the connection was cut; the caller tries again
        if (done || value === undefined) return;
        if (parse(value).some((event) => fields(parsed(event.data))["method"] === "notifications/resources/list_changed")) changed();
      }
    } finally {
      // Also when the tab is closed: the server would keep the session for a while.
      if (session !== "") void this.#fetch(endpoint, { method: "DELETE", headers: about, keepalive: true }).catch(() => {});
    }
  }

  /**
   * Opens a session whose stream announces changes. Returns an empty id if the server has none; the
   * stream then only shows that the server is reachable.
   */
  async #openSession(signal: AbortSignal): Promise<string> {
    const post = (message: object, headers: Record<string, string>) =>
      this.#fetch(endpoint, {
        method: "POST",
        headers: { "Content-Type": "application/json", Accept: "application/json, text/event-stream", ...headers },
        body: JSON.stringify({ jsonrpc: "2.0", ...message }),
        signal,
      });
    try {
      const capabilities = { experimental: { "mcp-code-sandbox/activity": {} } };
      const opened = await post({ id: this.#next++, method: "initialize", params: { protocolVersion: version, capabilities, clientInfo: { name: "page", version: "1" } } }, {});
      await opened.text();
      const session = opened.headers.get("Mcp-Session-Id") ?? "";
      if (session !== "") await (await post({ method: "notifications/initialized" }, { "Mcp-Session-Id": session, "MCP-Protocol-Version": version })).text();
      return session;
    } catch (err) {
      if (err instanceof CallError && err.trouble !== "refused") throw err;
      if (!(err instanceof CallError)) throw new CallError("offline", "The connection was lost."); // in the middle of an answer
      return "";
    }
  }

  async #request(method: string, params: object, options: CallOptions): Promise<unknown> {
    const id = this.#next++;
    const response = await this.#fetch(endpoint, {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "application/json, text/event-stream", "MCP-Protocol-Version": version },
      body: JSON.stringify({ jsonrpc: "2.0", id, method, params }),
      signal: options.signal ?? null,
    });
    if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) return answer(parsed(await response.text().catch(() => "")));
    const parse = eventParser();
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read().catch(() => ({ done: true, value: undefined }));
      if (options.signal?.aborted) throw new CallError("aborted", "Stopped.");
      if (done || value === undefined) throw new CallError("offline", "The connection was lost before the answer came.");
      for (const event of parse(value)) {
        const message = fields(parsed(event.data));
        if (message["id"] === id && message["method"] === undefined) return answer(message);
        if (message["method"] !== "notifications/progress") continue;
        const params = fields(message["params"]);
        options.onProgress?.({ message: text(params["message"]), meta: fields(params["_meta"]) });
      }
    }
  }

  async #fetch(path: string, init: RequestInit): Promise<Response> {
    const token = this.token();
    const refuse = () => {
      this.refused = token;
      return new CallError("key", "The server does not accept this key.");
    };
    if (!isKey(token)) throw refuse();
    let response: Response;
    try {
      response = await fetch(path, { ...init, headers: { ...init.headers, Authorization: `Bearer ${token}` }, cache: "no-store", credentials: "omit", redirect: "error" });
    } catch {
      if (init.signal?.aborted) throw new CallError("aborted", "Stopped.");
      throw new CallError("offline", "The server cannot be reached.");
    }
    if (response.ok) return response;
    const said = await message(response);
    if (response.status === 401) throw refuse();
    if (response.status === 502 || response.status === 503 || response.status === 504) {
      // The server is starting, stopping, or behind a proxy that cannot reach it.
      throw new CallError(response.headers.has("Retry-After") ? "busy" : "offline", said || "The server is not available.");
    }
    throw new CallError("refused", said || `The server answered ${response.status}.`);
  }
}

/** Reports whether it could be a key: one word that a header can carry. */
export function isKey(token: string): boolean {
  return /^[\x21-\x7e]+$/.test(token);
}

async function message(response: Response): Promise<string> {
  try {
    return text(fields(fields(await response.json())["error"])["message"]);
  } catch {
    return "";
  }
}

/** Returns the parsed JSON, or undefined if it is invalid. */
function parsed(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    return undefined;
  }
}

function answer(message: unknown): unknown {
  const { result, error } = fields(message);
  if (error !== undefined) throw new CallError("refused", text(fields(error)["message"], "The server refused the request without a reason."));
  if (result === undefined) throw new CallError("refused", "The server sent an invalid answer.");
  return result;
}

function toolOf(schema: Record<string, unknown>): Tool {
  return new Map(
    Object.entries(fields(schema["properties"])).map(([name, value]) => {
      const { maximum, enum: choices } = fields(value);
      return [name, { maximum: number(maximum), choices: texts(choices) }];
    }),
  );
}

function contentOf(value: unknown): Content[] {
  const c = fields(value);
  if (c["type"] === "text") return [{ type: "text", text: text(c["text"]) }];
  if (c["type"] === "image") return [{ type: "image", data: text(c["data"]), mimeType: text(c["mimeType"]) }];
  return [];
}

function refusal(result: ToolResult): CallError {
  const said = textOf(result);
  const { error, message } = fields(parsed(said));
  const code = text(error);
  return new CallError(code === "session_busy" || code === "max_sessions" ? "busy" : "refused", text(message, said), code);
}

export function textOf(result: ToolResult): string {
  return result.content.map((c) => (c.type === "text" ? c.text : "")).join("");
}
