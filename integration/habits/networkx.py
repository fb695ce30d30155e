# networkx
# %%
import matplotlib.pyplot as plt
import networkx as nx

graph = nx.Graph([(1, 2), (2, 3)])
nx.draw(graph, with_labels=True, pos={1: (0, 0), 2: (1, 1), 3: (2, 0)})
plt.show()
# %%
print(graph)
# %%
graph.degree
# %%
graph.nodes
