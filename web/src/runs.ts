// Active runs. The server runs them in the background, so they outlive this page. The page follows
// their output and finds them again after a reload or a lost connection.
import { CallError, type Client, type Progress, type Tool, type ToolResult } from "./mcp.ts";
import { detailsKey, RunView } from "./runview.ts";
import { fields, list, number, text } from "./shape.ts";
import { cells, type Cell, type Outcome } from "./store.ts";

export interface Run {
  readonly conversation: string;
  readonly cell: Cell;
  readonly view: RunView;
  readonly abort: AbortController;
  runId: string;
  began: number; // Infinity while it is queued
  here: boolean; // it ends with the connection
  stopping: boolean;
}

interface Events {
  /** The output, time or status of a run has changed. */
  changed(run: Run): void;
  /** A run has started or stopped waiting for another one. */
  queued(run: Run): void;
  ended(run: Run): void;
  trouble(err: CallError): void;
  /** Resolves when the server can be reached. */
  back(): Promise<void>;
}

const patience = 25; // seconds that the server waits for new output
const slowest = 40_000; // ms without an answer after which a connection counts as lost
const smallPart = 16 << 10;
const interval = 50; // ms between two small parts
const stopPatience = 8_000;
const mostTries = 4; // attempts to find a run that is not listed

/** A run as the server lists it with the files of its conversation. */
export interface Listed {
  runId: string;
  tag: string;
  runner: string;
  started: number;
  outcome: Outcome;
  queued: boolean; // it waits for another run; its outcome is "running"
  cause: string;
  duration: number;
}

export function listedOf(value: unknown): Listed[] {
  return list(value)
    .map(fields)
    .map((r) => ({
      runId: text(r["run_id"]), tag: text(r["tag"]), runner: text(r["runner"]), started: Date.parse(text(r["started"])) || 0, duration: number(r["duration_ms"]) ?? 0,
      cause: text(r["cause"]), queued: text(r["status"]) === "queued", outcome: outcomeOf(text(r["status"]), text(r["cause"]), number(r["exit_code"])),
    }))
    .filter((r) => r.runId !== "");
}

function outcomeOf(status: string, cause: string, exitCode: number | undefined): Outcome {
  if (status !== "completed" && status !== "cancelled") return "running";
  if (status === "cancelled") return "stopped";
  return cause === "" && exitCode === 0 ? "ok" : "failed";
}

export class Runs {
  tools = new Map<string, Tool>();
  #going = new Map<string, Run>(); // by the id of their cell

  constructor(
    private readonly client: Client,
    private readonly output: HTMLElement,
    private readonly nonce: string,
    private readonly on: Events,
  ) {}

  get(cell: Cell): Run | undefined {
    return this.#going.get(cell.id);
  }

  /** Returns this browser's active run in a conversation, the last one if there are several. */
  of(conversation: string): Run | undefined {
    return [...this.#going.values()].findLast((run) => run.conversation === conversation && !run.cell.foreign && run.cell.outcome === "running");
  }

  /** Returns the active run that a view shows. */
  shownIn(view: RunView | undefined): Run | undefined {
    return [...this.#going.values()].find((run) => run.view === view && run.cell.outcome === "running");
  }

  /** Runs code. The cell is already stored. */
  start(conversation: string, cell: Cell, tool: string, args: object): Run {
    return this.#go(conversation, cell, (run) => (this.#background(tool) ? this.#startBackground(run, tool, args) : this.#runHere(run, tool, args)));
  }

  /** Finds a run that was started earlier or elsewhere, and follows it from its beginning. */
  resume(conversation: string, cell: Cell): Run {
    return this.#going.get(cell.id) ?? this.#go(conversation, cell, (run) => this.#find(run));
  }

  /** Stops a run. */
  stop(run: Run): void {
    if (run.here && (run.stopping || run.runId === "" || !this.tools.has("cancel_run"))) {
      run.abort.abort(); // the second request, or a run that ends with its connection
      return;
    }
    run.stopping = true;
    run.view.status = { ...run.view.status, title: "Stopping" };
    if (run.runId !== "") this.#cancel(run);
  }

  #background(tool: string): boolean {
    return this.client.detailed && this.tools.has("wait_run") && this.tools.has("cancel_run") && (this.tools.get(tool)?.has("background") ?? false);
  }

  #go(conversation: string, cell: Cell, carryOut: (run: Run) => Promise<void>): Run {
    const run: Run = { conversation, cell, view: new RunView(this.output, this.nonce), abort: new AbortController(), runId: cell.runId, began: cell.at, here: false, stopping: false };
    this.#going.set(cell.id, run);
    const again = cell.outcome !== "running"; // the run has ended; only its output is fetched
    if (again) run.view.status = { state: "running", title: "Loading", facts: [] };
    const clock = setInterval(() => {
      if (!again) run.view.elapsed = Math.max(0, Date.now() - run.began);
      this.on.changed(run);
    }, 100);
    void carryOut(run)
      .catch((caught: unknown) => {
        const err = caught instanceof CallError ? caught : new CallError("refused", String(caught));
        run.view.fail(err);
        if (err.trouble !== "refused" && err.trouble !== "aborted") this.on.trouble(err);
      })
      .finally(() => {
        clearInterval(clock);
        this.#going.delete(cell.id);
        const state = run.view.status.state;
        if (!again) cells.update(conversation, cell.id, { outcome: state === "idle" || state === "running" ? "error" : state, cause: run.view.status.cause ?? "", duration: run.view.elapsed, runId: run.runId });
        this.on.ended(run);
      });
    return run;
  }

  #begun(run: Run, runId: string): void {
    if (runId === "" || run.runId !== "") return;
    run.runId = runId;
    cells.update(run.conversation, run.cell.id, { runId });
    if (run.stopping) this.#cancel(run);
  }

  #cancel(run: Run): void {
    void this.#cancelled(run);
    if (run.here) setTimeout(() => this.#going.get(run.cell.id) === run && run.abort.abort(), stopPatience);
  }

  /** Cancels a run as soon as the server can be reached. */
  async #cancelled(run: Run): Promise<void> {
    while (this.#going.get(run.cell.id) === run) {
      try {
        await this.client.call("cancel_run", { run_id: run.runId }, { signal: AbortSignal.timeout(slowest) });
        return;
      } catch (err) {
        if (!(err instanceof CallError)) throw err;
        if (run.here) return run.abort.abort();
        if (err.trouble !== "aborted") this.on.trouble(err);
        if (err.trouble !== "aborted" && err.trouble !== "offline") {
          run.stopping = false; // it can be stopped again
          return;
        }
        await this.on.back();
      }
    }
  }

  async #startBackground(run: Run, tool: string, args: object): Promise<void> {
    try {
      const result = await this.client.call(tool, { ...args, background: true }, { details: true, tag: run.cell.id, signal: run.abort.signal, onProgress: ({ meta }) => this.#begun(run, text(meta["mcp-code-sandbox/run_id"])) });
      this.#begun(run, text(fields(result.meta[detailsKey])["run_id"]));
      if (run.runId === "") return run.view.finish(result, Date.now() - run.cell.at); // without an id, this is the whole result
    } catch (err) {
      // The server may have started it nevertheless.
      if (!(err instanceof CallError && err.trouble === "offline")) throw err;
      await this.#reconnected(run, err);
      return this.#find(run);
    }
    return this.#follow(run);
  }

  /** For a server without background runs: the run ends with the connection. */
  async #runHere(run: Run, tool: string, args: object): Promise<void> {
    run.here = true;
    const result = await this.client.call(tool, args, {
      details: true,
      signal: run.abort.signal,
      onProgress: ({ message, meta }) => {
        run.runId ||= text(meta["mcp-code-sandbox/run_id"]);
        run.view.progress(message, meta);
      },
    });
    run.view.finish(result, Date.now() - run.cell.at);
  }

  /** Finds a run whose id may never have arrived. */
  async #find(run: Run): Promise<void> {
    for (let tries = 1; run.runId === ""; tries++) {
      try {
        const { meta } = await this.client.call("list_artifacts", { session_id: run.conversation }, { details: true, signal: run.abort.signal });
        this.#begun(run, listedOf(meta["mcp-code-sandbox/runs"]).find((r) => r.tag === run.cell.id)?.runId ?? "");
      } catch (err) {
        if (!(err instanceof CallError)) throw err;
        if (err.code !== "session_not_found") {
          if (err.trouble === "refused" || err.trouble === "aborted") throw err;
          await this.#reconnected(run, err);
          continue;
        }
      }
      if (run.runId !== "") break;
      if (tries === mostTries) return run.view.lose("The server does not know this run: it never started, or the server was restarted after it. Check the files before you run it again.");
      await new Promise((resolve) => setTimeout(resolve, 500)); // the request that starts it may still be in flight
    }
    return this.#follow(run);
  }

  async #follow(run: Run): Promise<void> {
    for (let cursor = 0; ; ) {
      await visible();
      const asked = performance.now();
      let result: ToolResult;
      try {
        const signal = AbortSignal.any([run.abort.signal, AbortSignal.timeout(slowest)]);
        // Until there is output, progress says when a run starts or stops waiting for another one.
        const onProgress = ({ meta }: Progress) => this.#showGoing(run, text(meta["mcp-code-sandbox/status"]), meta["mcp-code-sandbox/queued"]);
        result = await this.client.call("wait_run", { run_id: run.runId, cursor, timeout_seconds: patience }, { details: true, signal, ...(cursor === 0 ? { onProgress } : {}) });
      } catch (err) {
        if (!(err instanceof CallError)) throw err;
        if (run.abort.signal.aborted || (err.trouble === "refused" && err.code !== "run_not_found")) throw err;
        if (err.code === "run_not_found") return run.view.lose("The server no longer has the result of this run: it keeps results for a day, and the last 500. Files that the code wrote are still there.");
        await this.#reconnected(run, err);
        continue;
      }
      const part = fields(result.meta[detailsKey]);
      const output = text(part["output"]);
      run.view.follow(part);
      const status = text(part["status"]);
      if (status !== "running" && status !== "queued") return run.view.finish(result, Date.now() - run.cell.at);
      this.#showGoing(run, status, part["queued_behind"]);
      cursor = number(part["cursor"]) ?? cursor;
      this.on.changed(run);
      // Large output is fetched without a pause, because the server keeps only so much of it.
      if (output.length < smallPart) await new Promise((resolve) => setTimeout(resolve, Math.max(0, interval - (performance.now() - asked))));
    }
  }

  /** Shows that a run waits for another one, or that it runs; from then on its time counts. */
  #showGoing(run: Run, status: string, behind: unknown): void {
    if (run.cell.outcome !== "running" || (status !== "queued" && status !== "running")) return;
    const isQueued = status === "queued";
    if (isQueued !== (run.began === Infinity)) {
      run.began = isQueued ? Infinity : Date.now();
      this.on.queued(run);
    }
    if (run.stopping) run.view.status = { ...run.view.status, title: "Stopping" };
    else if (status === "running") run.view.status = { state: "running", title: "Running", facts: [] };
    else run.view.status = { state: "running", title: "Queued", facts: [waitsFor(fields(behind), this.#going.values())] };
    this.on.changed(run);
  }

  /** Waits until the server can be reached again. */
  async #reconnected(run: Run, err: CallError): Promise<void> {
    run.view.status = { state: "running", title: run.stopping ? "Stopping when the server can be reached" : "Reconnecting", facts: [] };
    this.on.changed(run);
    if (err.trouble !== "aborted") this.on.trouble(err.trouble === "busy" ? new CallError("offline", err.message) : err);
    await this.on.back();
  }
}

/** Describes what a run waits for. */
function waitsFor(behind: Record<string, unknown>, going: Iterable<Run>): string {
  const first = [...going].find((run) => run.runId !== "" && run.runId === text(behind["run_id"]));
  const more = (number(behind["ahead"]) ?? 1) - 1;
  const which = first && !first.cell.foreign ? "an earlier run of yours" : "another run of this interpreter";
  return `waits for ${which}${more > 0 ? ` and ${more} more` : ""}`;
}

/**
 * A hidden page holds no connection: browsers allow few per server, and the server keeps the
 * output.
 */
function visible(): Promise<void> {
  return new Promise((resolve) => {
    if (!document.hidden) return resolve();
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
  });
}
