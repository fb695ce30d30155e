"""Runs notebooks in Jupyter, each with a kernel and a directory of its own. Reads lines of JSON with a
name and cells, and answers each with a line that has the name and the outputs of the cells, or an error.
"""

import asyncio
import json
import os
import sys
import tempfile
import traceback

import nbformat.v4
from nbclient import NotebookClient
from traitlets.config import Config

TIMEOUT = 300  # seconds for a notebook; most take five


async def run(cells, home, directory):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    # Sockets in the file system: another program can take a TCP port between its choice and its use.
    config = Config({"AsyncKernelManager": {"transport": "ipc", "ip": home + "/kernel"}})
    client = NotebookClient(notebook, timeout=120, startup_timeout=120, allow_errors=True, kernel_name="python3",
                            resources={"metadata": {"path": directory}}, config=config)
    await client.async_execute(env={**os.environ, "HOME": home})
    return json.loads(json.dumps([cell.outputs for cell in notebook.cells]).replace(directory, "/data"))


async def answer(name, cells, answers):
    with tempfile.TemporaryDirectory(prefix="home-") as home, tempfile.TemporaryDirectory(prefix="data-") as directory:
        try:
            result = {"outputs": await asyncio.wait_for(run(cells, home, directory), TIMEOUT)}
        except Exception:
            result = {"error": traceback.format_exc()}
    print(json.dumps({"name": name, **result}), file=answers, flush=True)


async def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # for kernels, which repeat there what commands print
    tasks = []
    while line := await asyncio.to_thread(sys.stdin.readline):
        tasks.append(asyncio.create_task(answer(**json.loads(line), answers=answers)))
    await asyncio.gather(*tasks)


asyncio.run(main())
