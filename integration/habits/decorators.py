# Decorators and caches
# %%
import functools

def shout(function):
    @functools.wraps(function)
    def wrapper(*args):
        print("calling", function.__name__)
        return function(*args).upper()
    return wrapper

@shout
def greet(name):
    """Greets."""
    return f"hello {name}"

greet("ada")
# %%
@functools.lru_cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

fib(50), fib.cache_info().currsize
# %%
greet.__doc__, greet.__module__
