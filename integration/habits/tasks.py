# A task of one cell is awaited in another.
# %%
import asyncio

gate = asyncio.Event()

async def work(name):
    await gate.wait()
    return f"{name} done"

task = asyncio.create_task(work("first"))
# %%
task.done()
# %%
gate.set()
await task
# %%
queue = asyncio.Queue()
await queue.put("item")
# %%
await queue.get()
# %%
async def fails():
    raise ValueError("in a task")

await asyncio.create_task(fails())
