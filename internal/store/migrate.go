package store

import (
	"context"
	"fmt"
)

// migrations bring a database from one version to the next. They only go forward: append to the
// list, and never change what was released. Times and durations are in nanoseconds.
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

// tables are all tables of the last version.
var tables = []string{
	"tickets", "runs", "results", "execution_tokens", "connections", "key_check", "users", "oauth_clients",
	"oauth_requests", "browser_sessions", "oauth_consents", "oauth_codes", "oauth_grants", "oauth_refresh_tokens",
}

// migrate applies the missing migrations in one transaction, which excludes other processes.
func (s *Store) migrate(ctx context.Context) error {
	return s.transact(ctx, func(t tx) error {
		version, err := t.checkVersion(ctx)
		if err != nil {
			return err
		}
		for ; version < len(migrations); version++ {
			if err := t.exec(ctx, t.types(migrations[version])); err != nil {
				return fmt.Errorf("migration %d: %w", version+1, err)
			}
			if err := t.setVersion(ctx, t, version+1); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkVersion returns the version of the tables. It refuses those of a newer release.
func (t tx) checkVersion(ctx context.Context) (int, error) {
	version, err := t.version(ctx, t)
	if err == nil && version > len(migrations) {
		err = &Error{
			fmt.Errorf("it was written by a newer release (version %d; this one supports %d)", version, len(migrations)),
			"use that release, or " + t.elsewhere(),
		}
	}
	return version, err
}
