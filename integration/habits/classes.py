# A class that is defined again, and global state
# %%
class Account:
    total = 0

    def add(self, n):
        self.total += n
        return self

account = Account().add(5)
account.total
# %%
class Account(Account):
    def __repr__(self):
        return f"Account({self.total})"

Account().add(1)
# %%
isinstance(account, Account), __name__, Account.__module__
# %%
counter = 0
def increase():
    global counter
    counter += 1
increase(); increase()
counter
