"""The Python SDK 2.x as its documentation writes it (docs/client/transports.md), with the timeout that it shows or, as people
leave it out, with the HTTP client's own of 5 s. See clients_agents_test.go."""

import asyncio
import json
import os

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

HEADERS = {"Authorization": f"Bearer {os.environ['MCP_TOKEN']}"}


async def main():
    results = []
    timeout = {"timeout": httpx2.Timeout(30.0, read=300.0)} if os.environ.get("MCP_FORM") == "timeout" else {}
    async with httpx2.AsyncClient(headers=HEADERS, **timeout) as http_client:
        transport = streamable_http_client(os.environ["MCP_URL"], http_client=http_client)
        async with Client(transport) as client:
            tools = await client.list_tools()
            for call in json.loads(os.environ["CALLS"]):
                result = await client.call_tool(call["Tool"], call["Args"])
                results.append(
                    {
                        "text": "\n".join(c.text for c in result.content if c.type == "text"),
                        "images": [c.data for c in result.content if c.type == "image"],
                        "types": [c.type for c in result.content],
                        "error": result.is_error,
                    }
                )
    print(json.dumps({"tools": [t.name for t in tools.tools], "results": results}))


asyncio.run(main())
