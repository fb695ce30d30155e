"""The client of FastMCP. See clients_agents_test.go."""

import asyncio
import json
import os

from fastmcp import Client
from fastmcp.client.auth import BearerAuth
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError


def client():
    if stdio := os.environ.get("MCP_STDIO"):
        return Client(StdioTransport(**json.loads(stdio)))
    return Client(os.environ["MCP_URL"], auth=BearerAuth(os.environ["MCP_TOKEN"]))


def show(content):
    return {
        "text": "\n".join(c.text for c in content if c.type == "text"),
        "images": [c.data for c in content if c.type == "image"],
        "types": [c.type for c in content],
    }


async def main():
    results = []
    async with client() as sandbox:
        tools = await sandbox.list_tools()
        for call in json.loads(os.environ["CALLS"]):
            try:
                result = await sandbox.call_tool(call["Tool"], call["Args"])
                results.append(show(result.content))
            except ToolError as error:
                results.append({"text": str(error), "error": True})
    print(json.dumps({"tools": [t.name for t in tools], "results": results}))


asyncio.run(main())
