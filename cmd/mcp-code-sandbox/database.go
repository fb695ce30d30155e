package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"text/tabwriter"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/store"
)

// stateFile is the database in the root, unless SANDBOX_DATABASE_URL names another.
const stateFile = "state.db"

func isFile(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular()
}

// checkDatabase reports for doctor whether the database answers, and whether a server can use its
// tables.
func checkDatabase(ctx context.Context, s *settings) sandbox.Check {
	c := sandbox.Check{Name: "database"}
	found, err := store.Check(ctx, s.database())
	switch known, ok := errors.AsType[*store.Error](err); {
	case ok:
		c.Status, c.Detail, c.Fix = sandbox.Fail, known.Problem(), known.Fix
	case err != nil:
		c.Status, c.Detail, c.Fix = sandbox.Fail, err.Error(), fixRoot
	case found.Version == 0:
		c.Detail = found.Where + " has no tables yet; the server creates them when it starts"
	case found.Version < found.Newest:
		c.Detail = fmt.Sprintf("%s has version %d; the server brings it to version %d when it starts", found.Where, found.Version, found.Newest)
	default:
		c.Detail = fmt.Sprintf("%s has version %d", found.Where, found.Version)
	}
	return c
}

// withPostgresUser adds PGUSER, the user of a database URL without one, to the environment of a
// program in an outer namespace. Postgres knows this user there, but the driver would say root.
func withPostgresUser(environ []string) []string {
	u, err := user.Current()
	if err != nil || variables(environ)["PGUSER"] != "" {
		return environ
	}
	return slices.Concat([]string{"PGUSER=" + u.Username}, environ) // before an empty one
}

type storeCmd struct {
	Copy storeCopyCmd `cmd:"" help:"Copy all tables to an empty database and compare them. Stop the server first."`
}

type storeCopyCmd struct {
	From secret.Value `required:"" placeholder:"DATABASE" help:"The database to copy: the path of an SQLite file, such as state.db in the root, or postgres://user@host:5432/database. Put the password in PGPASSWORD or ~/.pgpass: other users can see flags."`
	To   secret.Value `required:"" placeholder:"DATABASE" help:"The database to copy to: a path or a URL, as above. It must be empty, or have the same contents already."`
}

// Run copies in one transaction. Nobody knows the outcome of one whose commit is interrupted.
func (c *storeCopyCmd) Run(ctx context.Context, inv *invocation) error {
	t := tabwriter.NewWriter(inv.stdout, 26, 0, 2, ' ', 0)
	rows := 0
	copied, err := store.Copy(ctx, c.From.Reveal(), c.To.Reveal(), func(c store.Contents) {
		rows += c.Rows
		fmt.Fprintf(t, "%s\t%s\t%x\n", c.Table, counted(c.Rows, "row", "rows"), c.Hash[:8])
		_ = t.Flush() // one line at a time; stdout's errors do not stop a copy
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("interrupted: the copy is complete or was not made. Run the command again; it says which")
	case err != nil:
		return err
	case copied.Already:
		fmt.Fprintf(inv.stdout, "\n%s has the same %s already; nothing was copied.\n", copied.To, counted(rows, "row", "rows"))
	default:
		fmt.Fprintf(inv.stdout, "\nCopied %s from %s to %s. Counts and hashes of all tables are the same.\n", counted(rows, "row", "rows"), copied.From, copied.To)
	}
	return nil
}
