# %%html, %%markdown, %%latex, %%javascript, %%svg
# %%
#: jupyter <IPython.core.display.HTML object>
#: here A paragraph
#: because a model reads the text, not the name of a class
%%html
<p>A <b>paragraph</b></p>
# %%
#: jupyter <IPython.core.display.Markdown object>
#: here ## Heading
#: here
#: because a model reads the text, not the name of a class
%%markdown
## Heading
# %%
#: jupyter <IPython.core.display.Latex object>
#: here \alpha + \beta
#: here
#: because a model reads the text, not the name of a class
%%latex
\alpha + \beta
# %%
#: jupyter application/javascript
#: because nothing here runs the JavaScript of a cell
%%javascript
console.log("hello");
# %%
%%svg
<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"></svg>
