// One MCP client that has no token and gets one by OAuth, by the TypeScript SDK. It prints events as lines of JSON and is told on stdin
// with which address the browser came back. See oauth_test.go.
import { createInterface } from "node:readline";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { UnauthorizedError } from "@modelcontextprotocol/sdk/client/auth.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const config = JSON.parse(process.argv[2]);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const tell = (event, facts = {}) => process.stdout.write(JSON.stringify({ event, ...facts }) + "\n");

const kept = {};
const provider = {
  redirectUrl: config.redirect,
  clientMetadata: {
    client_name: "TypeScript client",
    redirect_uris: [config.redirect],
    grant_types: ["authorization_code", "refresh_token"],
    response_types: ["code"],
    token_endpoint_auth_method: "none",
  },
  state: () => "state-of-the-typescript-client",
  clientInformation: () => kept.client,
  saveClientInformation: (c) => void (kept.client = c),
  tokens: () => kept.tokens,
  saveTokens: (t) => void (kept.tokens = t),
  saveCodeVerifier: (v) => void (kept.verifier = v),
  codeVerifier: () => kept.verifier,
  redirectToAuthorization: (url) => tell("authorize", { text: url.href }),
};

const connect = async () => {
  const transport = new StreamableHTTPClientTransport(new URL(config.url), { authProvider: provider });
  const client = new Client({ name: "integration", version: "1.0.0" });
  try {
    await client.connect(transport);
    return client;
  } catch (e) {
    if (!(e instanceof UnauthorizedError)) throw e;
    const answer = new URL((await lines.next()).value);
    if (answer.searchParams.get("state") !== provider.state()) throw new Error("state");
    await transport.finishAuth(answer.searchParams.get("code"));
    return connect();
  }
};

const client = await connect();
const run = async () => (await client.callTool({ name: "run_code", arguments: config.run })).content[0].text;
tell("ran", { text: await run() });

// An access token that does not work any more: the client refreshes by itself.
const before = kept.tokens.refresh_token;
kept.tokens = { ...kept.tokens, access_token: "at1.gone" };
tell("again", { text: await run(), names: [String(kept.tokens.refresh_token !== before)] });

await client.close();
process.exit(0); // stdin is still open
