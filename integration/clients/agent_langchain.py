"""An agent of LangChain with the server's tools, by langchain-mcp-adapters. See clients_agents_test.go."""

import asyncio
import json
import os

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langchain_openai import ChatOpenAI


def model(api):
    url = os.environ["MODEL_URL"]
    if api == "messages":
        return ChatAnthropic(model="claude-scripted", base_url=url.removesuffix("/v1"), api_key="none", max_tokens=1000)
    # With an older model this is Chat Completions, which take no image from a tool: set use_responses_api=True.
    return ChatOpenAI(model="gpt-6-scripted", base_url=url, api_key="none")


def connection():
    if stdio := os.environ.get("MCP_STDIO"):
        return {"transport": "stdio", **json.loads(stdio)}
    return {
        "transport": "streamable_http",
        "url": os.environ["MCP_URL"],
        "headers": {"Authorization": f"Bearer {os.environ['MCP_TOKEN']}"},
    }


async def main():
    client = MultiServerMCPClient({"sandbox": connection()})
    async with client.session("sandbox") as session:
        tools = await load_mcp_tools(session)
        answers = {}
        for api in os.environ["MODEL_APIS"].split():
            agent = create_agent(model(api), tools)
            result = await agent.ainvoke({"messages": [("user", "What is the revenue?")]})
            answers[api] = result["messages"][-1].text
    print(json.dumps({"tools": [t.name for t in tools], "answers": answers}))


asyncio.run(main())
