# HTML, Markdown, Latex, Code, Pretty
# %%
#: jupyter <IPython.core.display.HTML object>
#: here Title
#: here Some text
#: because a model reads the text, not the name of a class
from IPython.display import HTML, Code, Latex, Markdown, Math, Pretty, display

HTML("<h2>Title</h2><p>Some <b>text</b></p>")
# %%
#: jupyter <IPython.core.display.Markdown object>
#: here **bold** and *italic*
#: because a model reads the text, not the name of a class
display(Markdown("**bold** and *italic*"))
print("after")
# %%
#: jupyter <IPython.core.display.Latex object>
#: here $\frac{1}{2}$
#: because a model reads the text, not the name of a class
Latex(r"$\frac{1}{2}$")
# %%
#: jupyter <IPython.core.display.Math object>
#: here $\displaystyle x^2$
#: because a model reads the text, not the name of a class
Math(r"x^2")
# %%
Pretty("as it is")
# %%
#: here raw
#: here text/html: <u>raw</u>
#: here - item
#: here text/markdown: - item
#: because a model reads the text, not the name of a class
from IPython.display import display_html, display_markdown

display_html("<u>raw</u>", raw=True)
display_markdown("- item", raw=True)
# %%
Code("x = 1", language="python")
