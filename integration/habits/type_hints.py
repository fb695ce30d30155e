# Annotations, walrus, match, lambdas
# %%
def scale(xs: list[float], by: float = 2.0) -> list[float]:
    return [x * by for x in xs]

scale.__annotations__
# %%
if (n := len("four")) > 3:
    print(n)
# %%
match {"kind": "a", "n": 1}:
    case {"kind": "a", "n": n}:
        print("matched", n)
# %%
square = lambda x: x**2
square(5)
# %%
first, *rest = range(4)
rest
# %%
total: int = 3
total
