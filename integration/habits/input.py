# input(): nobody can answer.
# %%
#: here Your name?
#: here error: EOFError: there is no keyboard: nobody can answer input(). Assign the value in the code, or read it from a file in /data or from os.environ
#: here error: in cell 1, line 1
#: because the message says what to do
name = input("Your name? ")
# %%
#: because the message says what to do
import getpass

getpass.getpass()
