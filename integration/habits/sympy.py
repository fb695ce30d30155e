# sympy
# %%
from sympy import Eq, init_printing, integrate, sin, solve, symbols

x = symbols("x")
integrate(sin(x) ** 2, x)
# %%
solve(x**2 - 2, x)
# %%
Eq(x**2, 4)
# %%
print(x**2 + 1)
