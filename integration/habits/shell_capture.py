# files = !command
# %%
!touch b.csv a.csv note.txt
files = !ls *.csv
files
# %%
len(files), files[0], files.n
# %%
lines = !cat missing.txt
print(*lines)
# %%
out = !echo 'one two'; echo three
out.s, out.fields(0)
# %%
!!echo shown
