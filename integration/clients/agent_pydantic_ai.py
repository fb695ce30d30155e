"""An agent of Pydantic AI with the server's tools. See clients_agents_test.go."""

import asyncio
import json
import os

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


def model(api):
    url = os.environ["MODEL_URL"]
    if api == "messages":
        return AnthropicModel("claude-scripted", provider=AnthropicProvider(base_url=url.removesuffix("/v1"), api_key="none"))
    kind = OpenAIResponsesModel if api == "responses" else OpenAIChatModel
    return kind("gpt-scripted", provider=OpenAIProvider(base_url=url, api_key="none"))


def toolset():
    if stdio := os.environ.get("MCP_STDIO"):
        return MCPToolset(StdioTransport(**json.loads(stdio)))
    return MCPToolset(os.environ["MCP_URL"], headers={"Authorization": f"Bearer {os.environ['MCP_TOKEN']}"})


async def main():
    sandbox = toolset()
    answers = {}
    async with sandbox:
        tools = await sandbox.list_tools()
        for api in os.environ["MODEL_APIS"].split():
            agent = Agent(model(api), toolsets=[sandbox])
            answers[api] = (await agent.run("What is the revenue?")).output
    print(json.dumps({"tools": [t.name for t in tools], "answers": answers}))


asyncio.run(main())
