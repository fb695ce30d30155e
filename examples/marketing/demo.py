"""Turn a CSV of campaigns into a PDF report with an MCP client over stdio.

    python demo.py [--out report.pdf] [-- mcp-code-sandbox stdio]

This needs the MCP client from PyPI (`pip install mcp`). The other libraries are in the sandbox.
"""

import argparse
import asyncio
import base64
import json
import os
import pathlib
import sys

from mcp import Client, StdioServerParameters

HERE = pathlib.Path(__file__).parent

# A typical first attempt of a model: the column is called revenue.
BUGGY = """
import pandas as pd
df = pd.read_csv("/mnt/data/campaigns.csv")
print(df["sales_amount"].groupby(df["channel"]).sum())
"""

ANALYSIS = """
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

df = pd.read_csv("/mnt/data/campaigns.csv", parse_dates=["week"])
by = df.groupby("channel")[["clicks", "cost", "conversions", "revenue"]].sum()
by["roas"] = by["revenue"] / by["cost"]
by = by.sort_values("roas", ascending=False).round(2)
by.to_csv("/mnt/data/summary.csv")
print(by.to_string())

sns.set_theme(style="whitegrid")
fig, ax = plt.subplots(figsize=(7, 3.5))
sns.barplot(by.reset_index(), x="channel", y="roas", hue="channel", ax=ax)
ax.set(title="Return on ad spend", xlabel="", ylabel="revenue / cost")
fig.savefig("/mnt/data/roas.png", dpi=110, bbox_inches="tight")

fig, ax = plt.subplots(figsize=(7, 3.5))
sns.lineplot(df, x="week", y="revenue", hue="channel", ax=ax)
ax.set(title="Revenue per week", xlabel="", ylabel="")
fig.autofmt_xdate()
fig.savefig("/mnt/data/revenue.png", dpi=110, bbox_inches="tight")
"""

REPORT = """
import pandas as pd
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.platypus import Image, Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

summary = pd.read_csv("/mnt/data/summary.csv")
styles = getSampleStyleSheet()
table = Table([list(summary.columns)] + summary.values.tolist())
table.setStyle(TableStyle([("GRID", (0, 0), (-1, -1), 0.5, colors.grey), ("BACKGROUND", (0, 0), (-1, 0), colors.lightgrey)]))
best = summary.iloc[0]
SimpleDocTemplate("/mnt/data/report.pdf", pagesize=A4, title="Marketing report").build([
    Paragraph("Marketing report", styles["Title"]),
    Paragraph(f"Best channel: {best['channel']}, {best['roas']:.1f} of revenue for each unit of cost.", styles["BodyText"]),
    Spacer(1, 12), table, Spacer(1, 12),
    Image("/mnt/data/roas.png", 420, 210), Image("/mnt/data/revenue.png", 420, 210),
])
print("report.pdf written")
"""


class Failed(Exception):
    """A step had an unexpected result."""


async def call(client, tool, **arguments):
    """Call a tool and return its JSON and what it has besides text."""
    result = await client.call_tool(tool, arguments)
    text = result.content[0].text
    if result.is_error:
        raise Failed(f"{tool}: {text}")
    return json.loads(text), [c for c in result.content if c.type != "text"]


async def run(client, session, what, code, error=None):
    """Run code, which must succeed or fail with error."""
    facts, _ = await call(client, "run_python", session_id=session, code=code)
    lines = [line for line in facts["stderr"].splitlines() if not line.startswith("Hint: ")]
    last = (lines or [None])[-1] if facts["exit_code"] else None
    print(f"\n== {what}: exit code {facts['exit_code']}, {facts['duration_ms']} ms")
    print((facts["stdout"] or str(last)).rstrip())
    for artifact in facts["artifacts"]:
        print(f"   {artifact['path']} ({artifact['mime_type']}, {artifact['size_bytes']} bytes)")
    if last != error:
        raise Failed(f"{what}: {facts['stderr']}")


async def make_report(client, out):
    content = base64.b64encode((HERE / "campaigns.csv").read_bytes()).decode()
    uploaded, _ = await call(client, "upload_file", filename="campaigns.csv", content_base64=content)
    session = uploaded["session_id"]
    print(f"== uploaded {uploaded['path']} to session {session}")

    await run(client, session, "a first try", BUGGY, error="KeyError: 'sales_amount'")
    await run(client, session, "the fixed analysis", ANALYSIS)
    await run(client, session, "the report", REPORT)

    _, images = await call(client, "read_artifact", session_id=session, path="/mnt/data/roas.png")
    print(f"\n== the chart came as {images[0].mime_type}, for the model to see")
    _, files = await call(client, "read_artifact", session_id=session, path="/mnt/data/report.pdf")
    out.write_bytes(base64.b64decode(files[0].resource.blob))
    closed, _ = await call(client, "close_session", session_id=session)
    print(f"== {out} written; session {closed['status']}")


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("report.pdf"))
    parser.add_argument("server", nargs="*", default=["mcp-code-sandbox", "stdio"], help="the server's command")
    options = parser.parse_args()
    command, *arguments = options.server
    async with Client(StdioServerParameters(command=command, args=arguments, env=dict(os.environ))) as client:
        try:
            await make_report(client, options.out)
        except Failed as problem:
            return str(problem)


sys.exit(asyncio.run(main()))
