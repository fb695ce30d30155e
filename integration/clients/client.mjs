// One client's session with the server, by the TypeScript SDK. See clients_test.go for what it is told and what it answers.
import { createHash } from "node:crypto";
import { createInterface } from "node:readline";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const config = JSON.parse(process.argv[2]);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

const tell = (event, facts = {}) => process.stdout.write(JSON.stringify({ event, ...facts }) + "\n");
const text = (result) => result.content.filter((c) => c.type === "text").map((c) => c.text).join("");

const transport = config.command
  ? new StdioClientTransport({ command: config.command[0], args: config.command.slice(1), env: config.env, stderr: "inherit" })
  : new StreamableHTTPClientTransport(new URL(config.url), { requestInit: { headers: { Authorization: `Bearer ${config.token}` } } });
const client = new Client({ name: "integration", version: "1.0.0" });
await client.connect(transport);
tell("connected", { version: transport.protocolVersion ?? "" });

const call = (name, args, options) => client.callTool({ name, arguments: args }, undefined, options);

const { tools } = await client.listTools();
tell("tools", { names: tools.map((t) => t.name) });

// A program that ends only when its first output has been seen.
let seen;
const waiting = new Promise((resolve) => (seen = resolve));
const streaming = call("run_code", config.stream, { onprogress: (p) => p.message?.includes("waiting") && seen() });
await waiting;
tell("uploaded", { text: text(await call("upload_file", { ...config.upload, content: Buffer.from(config.greeting).toString("base64") })) });
tell("streamed", { text: text(await streaming) });

const made = text(await call("run_code", config.make));
tell("made", { text: made });
const got = await fetch(JSON.parse(made).files[0].url);
tell("downloaded", { sha256: createHash("sha256").update(Buffer.from(await got.arrayBuffer())).digest("hex") });

// A run that is abandoned, when told to, once it is going.
const abandon = new AbortController();
const endless = call("run_code", config.endless, { signal: abandon.signal, onprogress: () => tell("running") });
endless.catch(() => {});
await lines.next();
abandon.abort();
tell("cancelled");
await endless.catch(() => {});
tell("again", { text: text(await call("run_code", config.again)) });

await client.close();
process.exit(0); // stdin is still open
