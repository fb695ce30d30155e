# Threads and pools that print
# %%
import threading

def work(n):
    print("thread", n)

for n in range(3):
    thread = threading.Thread(target=work, args=(n,))
    thread.start()
    thread.join()
# %%
from concurrent.futures import ThreadPoolExecutor

with ThreadPoolExecutor(2) as pool:
    squares = list(pool.map(lambda n: n * n, range(5)))
squares
# %%
def fails():
    raise ValueError("in a thread")

thread = threading.Thread(target=fails, name="mine")
thread.start()
thread.join()
