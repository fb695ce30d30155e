# A figure of plotly
# %%
#: because the page has no renderer for plotly's own media type, so the figure is HTML
import plotly.graph_objects as go

figure = go.Figure(go.Bar(x=["a", "b"], y=[1, 2]))
figure
# %%
len(figure.data)
