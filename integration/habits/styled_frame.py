# Styler: colors, formats, a caption.
# %%
#: jupyter <pandas.io.formats.style.Styler at 0x…>
#: here Regions
#: here  	growth	total
#: here north	12.3%	1,200
#: here south	-5.0%	900
#: because a model reads the text, not the name of a class
import pandas as pd

df = pd.DataFrame({"growth": [0.123, -0.05], "total": [1200, 900]}, index=["north", "south"])
df.style.format({"growth": "{:.1%}", "total": "{:,}"}).set_caption("Regions")
# %%
#: jupyter <pandas.io.formats.style.Styler at 0x…>
#: here  	growth	total
#: here north	0.123000	1200
#: here south	-0.050000	900
#: because a model reads the text, not the name of a class
df.style.highlight_max(color="lightgreen").background_gradient(subset=["total"])
