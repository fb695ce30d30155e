# JSON and the code for it
# %%
#: jupyter <IPython.core.display.JSON object>
#: jupyter application/json
#: here {
#: here   "name": "Ada",
#: here   "tags": [
#: here     "x",
#: here     "y"
#: here   ]
#: here }
#: because a model reads the text, not the name of a class
from IPython.display import JSON

JSON({"name": "Ada", "tags": ["x", "y"]})
# %%
import json

data = {"b": [1, 2, {"c": None}], "a": "é"}
print(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False))
# %%
json.dumps(data)
# %%
data
# %%
json.loads("{bad}")
