// The page's only way to the server: MCP over HTTP, without a session, one POST per call.
import { eventParser } from "./sse.ts";

const endpoint = "/mcp";
const version = "2025-11-25";

/** What went wrong with a call, by what can be done about it. */
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

export type Content =
  | { type: "text"; text: string }
  | { type: "image"; data: string; mimeType: string }
  | { type: "resource_link"; uri: string; name: string };

export interface ToolResult {
  content: Content[];
  structuredContent?: unknown;
  isError?: boolean;
  _meta?: Record<string, unknown>;
}

export interface Tool {
  name: string;
  inputSchema: { properties?: Record<string, { maximum?: number }> };
}

interface Progress {
  message?: string;
  _meta?: Record<string, unknown>;
}

export interface CallOptions {
  signal?: AbortSignal;
  onProgress?: (progress: Progress) => void;
  /** Asks the server to tell all it knows about a run. */
  details?: boolean;
}

interface Message {
  id?: number;
  method?: string;
  params?: unknown;
  result?: unknown;
  error?: { code: number; message: string };
}

export class Client {
  #next = 1;

  constructor(private readonly token: () => string) {}

  async tools(): Promise<Tool[]> {
    const { tools } = (await this.#request("tools/list", {}, {})) as { tools: Tool[] };
    return tools;
  }

  /** Calls a tool. A refusal is thrown, with its code. */
  async call(name: string, args: object, options: CallOptions = {}): Promise<ToolResult> {
    const meta: Record<string, unknown> = {};
    if (options.onProgress) meta["progressToken"] = `p${this.#next}`;
    if (options.details) meta["mcp-code-sandbox/details"] = true;
    const result = (await this.#request("tools/call", { name, arguments: args, _meta: meta }, options)) as ToolResult;
    if (result.isError) throw refusal(result);
    return result;
  }

  /** The JSON that a tool answers with. */
  async json<T>(name: string, args: object): Promise<T> {
    const result = await this.call(name, args);
    if (result.structuredContent !== undefined) return result.structuredContent as T;
    return JSON.parse(textOf(result)) as T;
  }

  /** Stays connected until the server goes away or signal says so; then it returns or throws. */
  async presence(signal: AbortSignal, connected: () => void): Promise<void> {
    const response = await this.#fetch(`${endpoint}/events`, { signal, headers: { Accept: "text/event-stream" } });
    connected();
    try {
      await response.body?.pipeTo(new WritableStream()); // of which nothing is of interest but its end
    } catch {
      // cut off; the caller tries again
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
    if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) {
      return answer((await response.json().catch(() => ({ error: { message: "The server's answer cannot be understood." } }))) as Message);
    }
    const parse = eventParser();
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        for (const event of parse(value)) {
          const message = JSON.parse(event.data) as Message;
          if (message.id === id && message.method === undefined) return answer(message);
          if (message.method === "notifications/progress") options.onProgress?.(message.params as Progress);
        }
      }
    } catch (err) {
      if (err instanceof CallError) throw err;
      if (options.signal?.aborted) throw new CallError("aborted", "Stopped.");
      if (err instanceof SyntaxError) throw new CallError("refused", "The server's answer cannot be understood.");
    }
    throw new CallError("offline", "The connection was lost before the answer came.");
  }

  async #fetch(path: string, init: RequestInit): Promise<Response> {
    let response: Response;
    try {
      response = await fetch(path, { ...init, headers: { ...init.headers, Authorization: `Bearer ${this.token()}` }, cache: "no-store", credentials: "omit" });
    } catch {
      if (init.signal?.aborted) throw new CallError("aborted", "Stopped.");
      throw new CallError("offline", "The server cannot be reached.");
    }
    if (response.ok) return response;
    const said = await message(response);
    if (response.status === 401) throw new CallError("key", "The server does not accept this key.");
    if (response.status === 502 || response.status === 503 || response.status === 504) {
      // Of a server that is starting, stopping, or behind a proxy that cannot reach it.
      throw new CallError(response.headers.has("Retry-After") ? "busy" : "offline", said || "The server is not available.");
    }
    throw new CallError("refused", said || `The server answered ${response.status}.`);
  }
}

async function message(response: Response): Promise<string> {
  try {
    const body = (await response.json()) as Message;
    return body.error?.message ?? "";
  } catch {
    return "";
  }
}

function answer(m: Message): unknown {
  if (m.error) throw new CallError("refused", m.error.message);
  return m.result;
}

function refusal(result: ToolResult): CallError {
  const text = textOf(result);
  try {
    const { error, message } = JSON.parse(text) as { error?: string; message?: string };
    const busy = error === "session_busy" || error === "max_sessions";
    return new CallError(busy ? "busy" : "refused", message ?? text, error);
  } catch {
    return new CallError("refused", text);
  }
}

export function textOf(result: ToolResult): string {
  return result.content.map((c) => (c.type === "text" ? c.text : "")).join("");
}
