# get_ipython()
# %%
shell = get_ipython()
shell.run_line_magic("pwd", "") == shell.run_line_magic("pwd", "")
# %%
shell.system("echo from the shell")
# %%
shell.getoutput("echo captured")
# %%
shell.run_cell("print('nested')\n7").result
# %%
shell.user_ns["shell"] is shell
# %%
shell.ev("1 + 1")
# %%
if "google.colab" in str(get_ipython()):
    print("in Colab")
else:
    print("elsewhere")
