# A task of one cell is awaited in another.
# %%
import asyncio

async def work(name):
    await asyncio.sleep(0.05)
    return f"{name} done"

task = asyncio.create_task(work("first"))
# %%
task.done()
# %%
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
