// An agent of the AI SDK with the server's tools, by @ai-sdk/mcp. See clients_agents_test.go.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createMCPClient } from "@ai-sdk/mcp";
import { Experimental_StdioMCPTransport } from "@ai-sdk/mcp/mcp-stdio";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount } from "ai";

const { MCP_STDIO, MCP_TOKEN, MCP_URL, MODEL_APIS, MODEL_URL } = process.env;

const openai = createOpenAI({ baseURL: MODEL_URL, apiKey: "none" });
const anthropic = createAnthropic({ baseURL: MODEL_URL, apiKey: "none" });
const models = { chat: openai.chat("gpt-scripted"), responses: openai("gpt-scripted"), messages: anthropic("claude-scripted") };

const mcp = await createMCPClient({
  transport: MCP_STDIO
    ? new Experimental_StdioMCPTransport(JSON.parse(MCP_STDIO))
    : { type: "http", url: MCP_URL, headers: { Authorization: `Bearer ${MCP_TOKEN}` } },
});
try {
  const tools = await mcp.tools();
  const answers = {};
  for (const api of MODEL_APIS.split(" ")) {
    const { text } = await generateText({ model: models[api], tools, stopWhen: isStepCount(20), maxRetries: 0, prompt: "What is the revenue?" });
    answers[api] = text;
  }
  console.log(JSON.stringify({ tools: Object.keys(tools), answers }));
} finally {
  await mcp.close();
}
