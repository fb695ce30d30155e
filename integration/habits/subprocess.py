# Programs that are started from Python
# %%
import subprocess

done = subprocess.run(["echo", "captured"], capture_output=True, text=True)
done
# %%
done.stdout
# %%
print("before", flush=True)
done = subprocess.run(["echo", "to the cell"])
# %%
subprocess.check_output("echo $((6 * 7))", shell=True, text=True)
# %%
subprocess.run("exit 2", shell=True, check=True)
# %%
import os

status = os.system("echo from os.system")
# %%
os.popen("echo popen").read()
