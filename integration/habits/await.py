# await at the top level
# %%
import asyncio

async def fetch(n):
    await asyncio.sleep(0.01)
    return n * 10

await fetch(1)
# %%
results = await asyncio.gather(*(fetch(n) for n in range(3)))
print(results)
# %%
async with asyncio.Lock() as lock:
    print("locked")
# %%
async def numbers():
    for n in range(3):
        yield n

async for n in numbers():
    print(n)
# %%
[n async for n in numbers()]
# %%
fetch
