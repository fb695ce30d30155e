//go:build unix

package storetest

import (
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Freeze stops the processes of the server that has a database: it accepts connections, but answers
// nothing until thaw, or the end of the test. No other test may use the server meanwhile.
func Freeze(tb testing.TB, where string) (thaw func()) {
	tb.Helper()
	ctx := tb.Context()
	db, err := pgx.Connect(ctx, where)
	if err != nil {
		tb.Fatal(err)
	}
	defer db.Close(ctx)
	var stopped []int
	thaw = func() {
		for _, pid := range stopped {
			_ = syscall.Kill(pid, syscall.SIGCONT) // it may have ended
		}
	}
	tb.Cleanup(thaw)
	stop := func(query string) {
		var pids []int
		if err := db.QueryRow(ctx, query).Scan(&pids); err != nil {
			tb.Fatal(err)
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				tb.Fatal(err)
			}
			stopped = append(stopped, pid)
		}
	}
	// The postmaster comes first: then it starts no other process.
	stop(`SELECT ARRAY[split_part(pg_read_file('postmaster.pid'), E'\n', 1)::bigint]`)
	stop(`SELECT array_agg(pid::bigint) FROM pg_stat_activity WHERE pid <> pg_backend_pid()`)
	return thaw
}
