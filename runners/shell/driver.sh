# Runs a user's shell code cell by cell in one bash. The agent starts it; see internal/agent/cells_linux.go for the lines it reads
# and writes on descriptor 3. Variables, functions, options and the working directory live on. A cell that ends the shell (exit,
# or a failure under set -e) ends its state, and the agent says so.
trap 'return 130' INT # out of the cell, back to the loop
printf 'ready\n' >&3
while IFS=' ' read -r __verb __cell __dir <&3; do
	[ "$__verb" = execute ] || continue
	# Variables that the cell has for itself, and what they were before.
	declare -A __given=() __before=()
	if [ -f "$__dir/env" ]; then
		while IFS= read -r -d '' __line; do
			__name=${__line%%=*}
			__given[$__name]=${__line#*=}
			if [ -n "${!__name+set}" ]; then __before[$__name]=${!__name}; fi
			export "${__line?}" 2>/dev/null || :
		done <"$__dir/env"
		unset -v __line __name
	fi
	# The redirections hold for the cell alone; descriptor 3 is not the cell's.
	. "$__dir/code" </dev/null >"$__dir/stdout" 2>"$__dir/stderr" 3>&-
	__status=$?
	for __name in "${!__given[@]}"; do
		if [ "${!__name-}" != "${__given[$__name]}" ]; then continue; fi # the cell has set it to something else
		unset -v "$__name" 2>/dev/null || :
		if [ -n "${__before[$__name]+set}" ]; then export "$__name=${__before[$__name]}" 2>/dev/null || :; fi
	done
	unset -v __name __given __before
	printf 'result %s %s\n' "$__cell" "$__status" >&3
done
