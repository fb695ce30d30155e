"""An agent of openai-agents with the server's tools. See clients_agents_test.go."""

import asyncio
import json
import os

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from openai import AsyncOpenAI


def server():
    if stdio := os.environ.get("MCP_STDIO"):
        return MCPServerStdio(params=json.loads(stdio), client_session_timeout_seconds=60)
    return MCPServerStreamableHttp(
        params={"url": os.environ["MCP_URL"], "headers": {"Authorization": f"Bearer {os.environ['MCP_TOKEN']}"}},
        client_session_timeout_seconds=60,
    )


async def main():
    set_tracing_disabled(True)
    openai = AsyncOpenAI(base_url=os.environ["MODEL_URL"], api_key="none")
    answers = {}
    async with server() as sandbox:
        tools = await sandbox.list_tools()
        for api in os.environ["MODEL_APIS"].split():
            kind = OpenAIResponsesModel if api == "responses" else OpenAIChatCompletionsModel
            agent = Agent(name="analyst", model=kind(model="gpt-scripted", openai_client=openai), mcp_servers=[sandbox])
            answers[api] = (await Runner.run(agent, "What is the revenue?", max_turns=20)).final_output
    print(json.dumps({"tools": [t.name for t in tools], "answers": answers}))


asyncio.run(main())
