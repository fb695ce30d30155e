# Objects that say how they are shown
# %%
class Box:
    def __init__(self, **reprs):
        for kind, value in reprs.items():
            setattr(self, f"_repr_{kind}_", lambda value=value: value)

    def __repr__(self):
        return "Box()"

Box(html="<b>bold</b>")
# %%
Box(markdown="# Title")
# %%
Box(latex="$x^2$")
# %%
Box(svg='<svg xmlns="http://www.w3.org/2000/svg" width="4" height="5"></svg>')
# %%
#: jupyter application/json
#: because the text is enough
Box(json={"a": [1, 2]})
# %%
Box()
# %%
class Bundle:
    def __repr__(self):
        return "Bundle()"

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/html": "<i>both</i>", "text/plain": "plain"}

Bundle()
# %%
class Pretty:
    def _repr_pretty_(self, p, cycle):
        p.text("Pretty!")

[Pretty()]
# %%
#: jupyter error: in cell 9, line 3
#: here error: in cell 9, line 5
#: here error: in cell 9, line 3
#: because the frames begin in the cell
class Broken:
    def __repr__(self):
        raise ValueError("no repr")

Broken()
# %%
class BrokenMarkup:
    def __repr__(self):
        return "plain works"

    def _repr_html_(self):
        raise ValueError("no html")

BrokenMarkup()
