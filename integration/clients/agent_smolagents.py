"""An agent of smolagents with the server's tools. See clients_agents_test.go."""

import json
import os

from mcp import StdioServerParameters
from smolagents import MCPClient, OpenAIModel, ToolCallingAgent


def server():
    if stdio := os.environ.get("MCP_STDIO"):
        return StdioServerParameters(**json.loads(stdio))
    return {
        "url": os.environ["MCP_URL"],
        "transport": "streamable-http",
        "headers": {"Authorization": f"Bearer {os.environ['MCP_TOKEN']}"},
    }


model = OpenAIModel(model_id="gpt-scripted", api_base=os.environ["MODEL_URL"], api_key="none")
with MCPClient(server(), structured_output=False) as tools:
    agent = ToolCallingAgent(tools=tools, model=model, max_steps=20, verbosity_level=0)
    answer = agent.run("What is the revenue?")
    print(json.dumps({"tools": [t.name for t in tools], "answers": {"chat": answer}}))
