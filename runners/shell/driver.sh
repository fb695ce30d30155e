# Runs a user's shell code cell by cell in one bash. The agent starts it and exchanges lines with it
# on descriptor 3; see internal/agent. Variables, functions, options and the working directory
# persist, even if a cell ends its shell (exit, set -e, set -u): see __leave.

# __leave is the trap on EXIT while a cell runs. Bash must end then, so it writes its state to a file
# and execs a new bash, which resumes it. The process keeps its children and open files.
__leave() { # status, positional parameters
	set +o >|"$__dir/options"
	set +eux
	builtin trap - EXIT # it is not part of the state
	__status=$1
	shift
	# If bash has not undone the redirections, descriptor 3 is closed, and exec would close its copy and
	# every copy of that except 0, 1 and 2.
	if [ -S "/proc/$$/fd/$__copy" ]; then exec <&"$__copy" 3<&0 </dev/null; fi
	if [ -n "${__exit_trap+set}" ]; then
		__trap=$__exit_trap
		unset -v __exit_trap
		(
			__set_status "$__status"
			eval "$__trap"
			exit "$__status"
		) </dev/null >>"$__dir/stdout" 2>>"$__dir/stderr" 3>&-
		__status=$?
		unset -v __trap
	fi
	{
		shopt -p # first: functions may be written with extended patterns
		alias -p
		declare -p
		declare -f
		declare -Fx
		builtin trap -p
		for ((__i = ${#DIRSTACK[@]} - 1; __i > 0; __i--)); do printf 'pushd -n -- %q >/dev/null\n' "${DIRSTACK[__i]}"; done
		printf 'set --'
		if [ $# -gt 0 ]; then printf ' %q' "$@"; fi
		printf '\n__resumed=1\n'
		mapfile -t __options <"$__dir/options"
		printf '%s\n' "${__options[@]}" # last, because they affect what reads this file
	} >|"$__dir/state" 2>/dev/null
	BASH_ENV='' exec /proc/self/exe "$__driver" resume "$__dir" "$__status" >/dev/null 2>&1
}

__set_status() { return "$1"; }

# __trap replaces trap in cells: a trap on EXIT must not remove __leave, which runs the cell's trap.
__trap() {
	if [ "$BASHPID" != "$$" ]; then
		builtin trap "$@"
		return
	fi
	if [ "${1-}" = -- ]; then shift; fi
	case ${1--p} in -[lpP]*)
		builtin trap "$@"
		return
		;;
	esac
	local action=- signal signals=()
	if [ $# -gt 1 ]; then
		action=$1
		shift
	fi
	for signal; do
		case ${signal^^} in
		EXIT | SIGEXIT | 0) if [ "$action" = - ]; then unset -v __exit_trap; else __exit_trap=$action; fi ;;
		*) signals+=("$signal") ;;
		esac
	done
	if [ "${#signals[@]}" -gt 0 ]; then builtin trap -- "$action" "${signals[@]}"; fi
}

# With a trap on EXIT, bash catches signals that end it, and a child loses one that comes before its
# exec, or answers for its parent. Trapping a signal before EXIT, and resetting it, keeps its default.
builtin trap : HUP TERM ALRM USR1 USR2 EXIT
builtin trap - HUP TERM ALRM USR1 USR2 EXIT
if [ "${1-}" = resume ]; then
	set +eu
	__status=$3
	. "$2/state" 2>/dev/null # fails for bash's own readonly variables
	if [ -z "${__resumed-}" ]; then exit "$__status"; fi # the state was cut: no room
else
	__driver=$0 __resumed=''
	builtin trap 'return 130' INT # out of the cell, back to the loop
	printf 'ready repeat\n' >&3 # bash loses an interrupt that comes while it forks
fi
while [ -n "$__resumed" ] || IFS=' ' read -r __verb __cell __dir <&3; do
	if [ -z "$__resumed" ]; then
		if [ "$__verb" != execute ]; then continue; fi
		# The cell's own variables, and their previous values.
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
		mapfile -d '' -n 1 __text <"$__dir/code"
		if [[ ${__text-} =~ trap[^$'\n']*(EXIT|exit|0) ]]; then trap() { __trap "$@"; }; fi
		unset -v __text
		__copy=10 # the first free descriptor, for the copy
		while [ -e "/proc/$$/fd/$__copy" ]; do __copy=$((__copy + 1)); done
		builtin trap '{ __status=$?; if [ "$BASHPID" = "$$" ]; then __leave "$__status" "$@"; fi; } 2>/dev/null' EXIT # not in a child
		# The trap on INT cannot return from this loop. An interrupt that came here has left a mark; if it
		# comes between the test and the code, the agent repeats it.
		if [ -e "$__dir/interrupted" ]; then
			__status=130
		else # the redirections apply to the cell only, which must not have descriptor 3
			. "$__dir/code" 3>&- </dev/null >"$__dir/stdout" 2>"$__dir/stderr"
			__status=$?
		fi
		builtin trap - EXIT
	fi
	__resumed=''
	for __name in "${!__given[@]}"; do
		if [ "${!__name-}" != "${__given[$__name]}" ]; then continue; fi # the cell has changed it
		unset -v "$__name" 2>/dev/null || :
		if [ -n "${__before[$__name]+set}" ]; then export "$__name=${__before[$__name]}" 2>/dev/null || :; fi
	done
	unset -v __name __given __before __copy
	printf 'result %s %s\n' "$__cell" "$__status" >&3
done
