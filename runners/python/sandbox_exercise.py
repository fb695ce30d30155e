"""Imported by a zygote after the libraries: uses them once, for what they only do at their first use (caches, imports of their own, code that
the interpreter adapts) is then shared by all forks instead of done by each.
"""

import io

import matplotlib.pyplot
import pandas


def rehearse():
    """A bit of it, for a fork that waits for its run: the memory that this writes to is copied before somebody waits for it."""
    frame = pandas.DataFrame({"key": ["a", "b", "a"], "value": [1, 2, 3]})
    frame.groupby("key").value.sum().to_dict()
    return frame


def exercise():
    frame = rehearse()
    str(frame.describe())
    frame._repr_html_()
    pandas.read_csv(io.StringIO(frame.to_csv()))
    figure, axes = matplotlib.pyplot.subplots()
    axes.plot([1, 2, 3])
    figure.savefig(io.BytesIO(), format="png")
    matplotlib.pyplot.close(figure)


for _ in range(3):
    exercise()
