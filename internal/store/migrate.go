package store

import (
	"context"
	"fmt"
)

// migrations bring a database from one version to the next. SQLite's user_version counts those that
// were applied. Append to the list; never change what was released. Times and durations are in
// nanoseconds.
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

// migrate applies the missing migrations in one transaction, which excludes other processes.
func (s *Store) migrate(ctx context.Context) error {
	return s.transact(ctx, func(t tx) error {
		version, err := queryOne(ctx, t, value[int], `PRAGMA user_version`)
		if err != nil {
			return err
		}
		if version > len(migrations) {
			return fmt.Errorf("it was written by a newer release (version %d; this one supports %d): "+
				"use that release, or another data directory", version, len(migrations))
		}
		for ; version < len(migrations); version++ {
			if err := t.exec(ctx, fmt.Sprintf("%s\nPRAGMA user_version = %d", migrations[version], version+1)); err != nil {
				return fmt.Errorf("migration %d: %w", version+1, err)
			}
		}
		return nil
	})
}
