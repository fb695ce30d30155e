"""Runs notebooks in Jupyter, each with a kernel and a directory of its own. Reads lines of JSON with a
name and cells, and answers each with a line that has the name and the outputs of the cells.
"""

import asyncio
import json
import os
import sys
import tempfile

import nbformat.v4
from nbclient import NotebookClient


async def run(cells, home, directory):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(notebook, timeout=120, allow_errors=True, resources={"metadata": {"path": directory}}, kernel_name="python3")
    await client.async_execute(env={**os.environ, "HOME": home})
    return json.loads(json.dumps([cell.outputs for cell in notebook.cells]).replace(directory, "/data"))


async def answer(name, cells, answers):
    with tempfile.TemporaryDirectory(prefix="home-") as home, tempfile.TemporaryDirectory(prefix="data-") as directory:
        print(json.dumps({"name": name, "outputs": await run(cells, home, directory)}), file=answers, flush=True)


async def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # for kernels, which repeat there what commands print
    tasks = []
    while line := await asyncio.to_thread(sys.stdin.readline):
        tasks.append(asyncio.create_task(answer(**json.loads(line), answers=answers)))
    await asyncio.gather(*tasks)


asyncio.run(main())
