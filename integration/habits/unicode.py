# Text that is not ASCII
# %%
print("naïve café — 漢字 🎉")
# %%
"漢字 🎉"
# %%
größe = 3
größe
# %%
"\ud800".encode("utf-8", "replace"), "tab\tand\nnewline"
# %%
!echo "ünïcode"
