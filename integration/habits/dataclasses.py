# Dataclasses, named tuples, enums
# %%
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from enum import Enum

@dataclass
class Point:
    x: int
    y: int = 0
    tags: list = field(default_factory=list)

Point(1, tags=["a"])
# %%
class Color(Enum):
    RED = 1

Color.RED
# %%
Pair = namedtuple("Pair", "left right")
Pair(1, 2)
# %%
Counter("banana")
# %%
defaultdict(list, {"a": [1]})
# %%
OrderedDict(a=1)
# %%
{"long": list(range(30)), "nested": {"a": {"b": ["text" * 5] * 5}}}
# %%
{3, 1, 2}, frozenset([1])
# %%
Point
