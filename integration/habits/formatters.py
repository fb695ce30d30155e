# A formatter for a type
# %%
class Money:
    def __init__(self, amount):
        self.amount = amount

html = get_ipython().display_formatter.formatters["text/html"]
html.for_type(Money, lambda m: f"<b>{m.amount:.2f} €</b>")
plain = get_ipython().display_formatter.formatters["text/plain"]
plain.for_type(Money, lambda m, p, cycle: p.text(f"{m.amount:.2f} EUR"))
Money(3)
# %%
%precision 3
2 / 3
# %%
plain.for_type(int, lambda n, p, cycle: p.text(hex(n)))
255
