# pathlib, zipfile, glob, shutil
# %%
from pathlib import Path

path = Path("notes") / "a.txt"
path.parent.mkdir(exist_ok=True)
path.write_text("héllo\n", encoding="utf-8")
# %%
path
# %%
sorted(p.name for p in Path("notes").iterdir()), path.suffix, path.exists()
# %%
import zipfile

with zipfile.ZipFile("notes.zip", "w") as z:
    z.write(path)
zipfile.ZipFile("notes.zip").namelist()
# %%
with open(path) as f:
    for line in f:
        print(line, end="")
# %%
open("missing/file.txt")
