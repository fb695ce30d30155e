"""The Python SDK 1.x as its documentation writes it (docs/client.md and docs/authorization.md): an httpx client that carries
the header, with httpx's own timeout of 5 s, or the older function that takes headers. See clients_agents_test.go."""

import asyncio
import contextlib
import json
import os

import httpx
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client, streamablehttp_client

HEADERS = {"Authorization": f"Bearer {os.environ.get('MCP_TOKEN')}"}


@contextlib.asynccontextmanager
async def streams():
    if stdio := os.environ.get("MCP_STDIO"):
        async with stdio_client(StdioServerParameters(**json.loads(stdio))) as (read_stream, write_stream):
            yield read_stream, write_stream
    elif os.environ.get("MCP_FORM") == "headers":
        async with streamablehttp_client(os.environ["MCP_URL"], headers=HEADERS) as (read_stream, write_stream, _):
            yield read_stream, write_stream
    else:
        async with httpx.AsyncClient(headers=HEADERS) as custom_client:
            async with streamable_http_client(os.environ["MCP_URL"], http_client=custom_client) as (read_stream, write_stream, _):
                yield read_stream, write_stream


async def main():
    results = []
    async with streams() as (read_stream, write_stream):
        async with ClientSession(read_stream, write_stream) as session:
            await session.initialize()
            tools = await session.list_tools()
            for call in json.loads(os.environ["CALLS"]):
                result = await session.call_tool(call["Tool"], arguments=call["Args"])
                results.append(
                    {
                        "text": "\n".join(c.text for c in result.content if c.type == "text"),
                        "images": [c.data for c in result.content if c.type == "image"],
                        "types": [c.type for c in result.content],
                        "error": result.isError,
                    }
                )
    print(json.dumps({"tools": [t.name for t in tools.tools], "results": results}))


asyncio.run(main())
