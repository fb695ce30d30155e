package store

import (
	"context"
	"database/sql"
	"fmt"
)

// migrations bring a database from one version to the next. The version is the number of those that were applied, kept in
// SQLite's user_version. Append to the list; never change what was released. Times and durations are in nanoseconds.
var migrations = [...]string{
	`CREATE TABLE tickets (
		id        TEXT PRIMARY KEY,
		caller    TEXT NOT NULL,
		session   TEXT NOT NULL,
		name      TEXT NOT NULL,
		overwrite INTEGER NOT NULL,
		expires   INTEGER NOT NULL
	) STRICT, WITHOUT ROWID;
	CREATE TABLE runs (
		id        TEXT PRIMARY KEY,
		caller    TEXT NOT NULL,
		session   TEXT NOT NULL,
		runner    TEXT NOT NULL,
		started   INTEGER NOT NULL,
		duration  INTEGER NOT NULL,
		exit_code INTEGER NOT NULL,
		cause     TEXT NOT NULL
	) STRICT, WITHOUT ROWID;
	CREATE INDEX runs_started ON runs (started);`,
	`CREATE TABLE results (
		id       TEXT PRIMARY KEY,
		caller   TEXT NOT NULL,
		session  TEXT NOT NULL,
		instance TEXT NOT NULL,
		started  INTEGER NOT NULL,
		ended    INTEGER NOT NULL,
		data     BLOB NOT NULL
	) STRICT;
	CREATE INDEX results_caller ON results (caller, ended);
	CREATE INDEX results_started ON results (started);`,
	tokensTables,
	connectionsTables,
	oauthTables,
}

// migrate applies what is missing, in one transaction that no other process can be inside of.
func migrate(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var version int
	if err := tx.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&version); err != nil {
		return err
	}
	if version > len(migrations) {
		return fmt.Errorf("it was written by a newer release (version %d, this one knows %d): use that release, or another data directory", version, len(migrations))
	}
	for ; version < len(migrations); version++ {
		stmt := fmt.Sprintf("%s\nPRAGMA user_version = %d", migrations[version], version+1)
		if _, err := tx.ExecContext(ctx, stmt); err != nil {
			return fmt.Errorf("migration %d: %w", version+1, err)
		}
	}
	return tx.Commit()
}
