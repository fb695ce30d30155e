# asyncio.run in a cell
# %%
#: jupyter error: RuntimeError: asyncio.run() cannot be called from a running event loop
#: jupyter error: in cell 1, line 6
#: here 42
#: because it works here
import asyncio

async def answer():
    return 42

asyncio.run(answer())
