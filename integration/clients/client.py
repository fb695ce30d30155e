"""One client's session with the server, by the Python SDK. See clients_test.go for what it is told and what it answers."""

import asyncio
import base64
import contextlib
import hashlib
import json
import sys

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

config = json.loads(sys.argv[1])


def tell(event, **facts):
    print(json.dumps({"event": event, **facts}), flush=True)


def text(result):
    return "".join(c.text for c in result.content if c.type == "text")


def server(http):
    if config.get("command"):
        command, *args = config["command"]
        return StdioServerParameters(command=command, args=args, env=config["env"])
    return streamable_http_client(config["url"], http_client=http)


async def stream(client):
    """Runs a program that ends only when its first output has been seen."""
    waiting = asyncio.Event()

    async def progress(_progress, _total, message):
        if "waiting" in (message or ""):
            waiting.set()

    async def call():
        return text(await client.call_tool("run_code", config["stream"], progress_callback=progress))

    run = asyncio.create_task(call())
    await waiting.wait()
    content = base64.b64encode(config["greeting"].encode()).decode()
    uploaded = await client.call_tool("upload_file", {**config["upload"], "content": content})
    tell("uploaded", text=text(uploaded))
    tell("streamed", text=await run)


async def cancel(client):
    """Abandons a run, when told to, once it is going."""
    running = asyncio.Event()

    async def progress(_progress, _total, _message):
        running.set()

    run = asyncio.create_task(client.call_tool("run_code", config["endless"], progress_callback=progress))
    await running.wait()
    tell("running")
    await asyncio.to_thread(sys.stdin.readline)
    run.cancel()
    tell("cancelled")
    with contextlib.suppress(asyncio.CancelledError):
        await run


async def main():
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {config.get('token')}"}, timeout=60) as http:
        async with Client(server(http), mode=config["mode"]) as client:
            tell("connected", version=client.session.protocol_version)
            tools = await client.list_tools()
            tell("tools", names=[t.name for t in tools.tools])
            await stream(client)
            made = text(await client.call_tool("run_code", config["make"]))
            tell("made", text=made)
            async with httpx2.AsyncClient() as anybody:
                got = await anybody.get(json.loads(made)["files"][0]["url"])
            tell("downloaded", sha256=hashlib.sha256(got.content).hexdigest())
            await cancel(client)
            again = await client.call_tool("run_code", config["again"])
            tell("again", text=text(again))


asyncio.run(main())
