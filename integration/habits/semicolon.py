# A semicolon at the end hides the value.
# %%
"hidden";
# %%
x = 1; x
# %%
[1, 2, 3];  # with a comment
# %%
"a;b"
