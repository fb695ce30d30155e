# Programs that are started from Python
# %%
import subprocess
import time

done = subprocess.run(["echo", "captured"], capture_output=True, text=True)
done
# %%
done.stdout
# %%
print("before", flush=True)
done = subprocess.run(["echo", "to the cell"])
time.sleep(1)  # Jupyter reads what programs print in another thread
# %%
subprocess.check_output("echo $((6 * 7))", shell=True, text=True)
# %%
subprocess.run("exit 2", shell=True, check=True)
# %%
import os

status = os.system("echo from os.system")
time.sleep(1)
# %%
os.popen("echo popen").read()
