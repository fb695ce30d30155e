# Audio, and links to files
# %%
import numpy as np
from IPython.display import Audio, FileLink, IFrame

Audio(np.sin(np.arange(80) / 5), rate=8000)
# %%
open("notes.txt", "w").write("x")
FileLink("notes.txt")
# %%
IFrame("https://example.com", width=300, height=200)
