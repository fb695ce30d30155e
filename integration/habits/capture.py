# %%capture
# %%
%%capture out
import sys
print("printed")
print("problem", file=sys.stderr)
41 + 1
# %%
out.stdout, out.stderr
# %%
out.show()
# %%
%%capture
print("never seen")
# %%
from contextlib import redirect_stdout
import io

with redirect_stdout(io.StringIO()) as text:
    print("redirected")
text.getvalue()
