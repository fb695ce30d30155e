# Generators, iterators and lazy values
# %%
def countdown(n):
    while n:
        yield n
        n -= 1

countdown(3)
# %%
list(countdown(3))
# %%
range(5), map(str, [1]).__class__, zip([1], "a").__class__
# %%
next(iter(countdown(2)))
# %%
{x: x**2 for x in range(4)}
# %%
list(range(200))
# %%
"x" * 300
