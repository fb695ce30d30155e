# Lines with "!".
# %%
!echo hello
# %%
!printf 'a\nb\n' > letters.txt
!cat letters.txt | tr a-z A-Z
# %%
print("before")
!echo between
print("after")
# %%
for i in range(2):
    !echo round {i}
# %%
!exit 3
_exit_code
# %%
!ls -1 *.txt
