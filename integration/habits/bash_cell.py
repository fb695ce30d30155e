# %%bash and %%sh
# %%
%%bash
set -e
for i in 1 2 3; do echo "line $i"; done
echo problem >&2
# %%
%%sh
echo "from sh"
# %%
%%bash --out result
echo kept
# %%
result
# %%
%%bash
echo before
exit 4
