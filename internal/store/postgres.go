package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

const (
	// postgresTimeout bounds Open: the connection, the wait for another server's migrations, and
	// its own migrations.
	postgresTimeout = 30 * time.Second
	connectTimeout  = 5 * time.Second
	// statementTimeout bounds each statement and each transaction after that. A Postgres that is
	// frozen, or that the network no longer reaches, would otherwise hold every connection forever.
	statementTimeout = 10 * time.Second
	maxConnections   = 16 // of one server

	// applicationName is how Postgres lists our connections; see exclude.
	applicationName = "mcp-code-sandbox"
	// migrationLock is the advisory lock of those that migrate.
	migrationLock = 0x6d63_702d_7361_6e64
)

// otherURL finds what is not a path: a URL of another kind, and libpq's keywords. An error would
// quote a path, and these may have a password.
var otherURL = regexp.MustCompile(`(?i)\w\w://|password\s*=`)

// errURL never quotes the URL, which may have a password in an unexpected place.
var errURL = &Error{errors.New("the database URL is not valid"), "write it like postgres://user@host:5432/database, with %40 for @ in a password, %2F for /, %3F for ? and %23 for #"}

// postgresDialect is Postgres. Its transactions see each other's commits (READ COMMITTED), so they
// lock what they read before they change it.
type postgresDialect struct{ where, user, database string }

// IsURL reports whether where is the URL of a Postgres database. Otherwise it is a path.
func IsURL(where string) bool {
	return strings.HasPrefix(where, "postgres://") || strings.HasPrefix(where, "postgresql://")
}

// CheckURL returns an error that never quotes the URL, unless it is that of a Postgres database.
func CheckURL(where string) error {
	_, err := parseURL(where)
	return err
}

// mayHaveAt are the parameters of a database URL whose values may have an @.
var mayHaveAt = regexp.MustCompile(`^(application_name|host|krbspn|options|passfile|password|service|servicefile|ssl[a-z]+|user)=`)

// isAmbiguous reports whether a database URL has an @ that may belong to the password, or a #. For
// the driver, the first @ ends the password unless a / comes before it; the rest is host and
// database, which errors show.
func isAmbiguous(where string) bool {
	_, rest, _ := strings.Cut(where, "://")
	before, query, _ := strings.Cut(rest, "?")
	authority, path, hasPath := strings.Cut(before, "/")
	ends := hasPath || strings.Contains(authority, "@")
	isLate := func(parameter string) bool {
		return strings.Contains(parameter, "@") && (!ends || !mayHaveAt.MatchString(parameter))
	}
	return strings.Count(authority, "@") > 1 || strings.Contains(path, "@") || strings.Contains(before, "#") ||
		slices.ContainsFunc(strings.Split(query, "&"), isLate)
}

// parseURL also reads libpq's variables and files, such as PGPASSWORD and ~/.pgpass.
func parseURL(where string) (*pgx.ConnConfig, error) {
	if _, err := url.Parse(where); err != nil || !IsURL(where) || isAmbiguous(where) {
		return nil, errURL
	}
	cfg, err := pgx.ParseConfig(where)
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, &Error{fmt.Errorf("a file of the database URL: %w", file), "correct its path"}
	}
	if err != nil {
		return nil, errURL
	}
	cfg.RuntimeParams["application_name"] = applicationName
	// The administrator may have set another default, with which transactions fail.
	cfg.RuntimeParams["default_transaction_isolation"] = "read committed"
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	return cfg, nil
}

func connectPostgres(where string) (*Store, error) {
	cfg, err := parseURL(where)
	if err != nil {
		return nil, err
	}
	pool := stdlib.OpenDB(*cfg)
	pool.SetMaxOpenConns(maxConnections)
	pool.SetMaxIdleConns(maxConnections)
	pool.SetConnMaxIdleTime(5 * time.Minute)
	u := url.URL{Scheme: "postgres", User: url.User(cfg.User), Path: "/" + cfg.Database}
	if strings.HasPrefix(cfg.Host, "/") {
		u.RawQuery = "host=" + cfg.Host
	} else {
		u.Host = net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
	}
	return newStore(pool, &postgresDialect{u.String(), cfg.User, cfg.Database}), nil
}

func (d *postgresDialect) String() string { return d.where }

func (*postgresDialect) patience() time.Duration { return postgresTimeout }

func (*postgresDialect) prepare(ctx context.Context, s *Store) error {
	encoding, err := queryOne(ctx, s.db, value[string], `SHOW server_encoding`)
	if err != nil {
		return err
	}
	if encoding != "UTF8" {
		return &Error{fmt.Errorf("its encoding is %s", encoding), "create one with createdb -E UTF8 -T template0"}
	}
	if err := s.migrate(ctx); err != nil {
		return err
	}
	s.db.timeout = statementTimeout
	return s.followClock(ctx)
}

func (d *postgresDialect) fix(err error) string {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	switch _, unreachable := errors.AsType[*pgconn.ConnectError](err); {
	case !ok && unreachable:
		return "start Postgres, or correct the host and the port of the database URL"
	case !ok:
		return ""
	case strings.HasPrefix(refused.Code, "28"):
		return "correct the user or the password, which may be in the database URL, in PGPASSWORD or in ~/.pgpass"
	case refused.Code == "3D000":
		return fmt.Sprintf("create it with createdb -O %s %s", d.user, d.database)
	case refused.Code == "42501":
		return fmt.Sprintf("let the user create tables: ALTER DATABASE %q OWNER TO %q", d.database, d.user)
	case refused.Code == "53300":
		return fmt.Sprintf("raise max_connections of Postgres; a server uses up to %d", maxConnections)
	}
	return ""
}

func (*postgresDialect) ping(ctx context.Context, q querier) error {
	readOnly, err := queryOne(ctx, q, value[string], `SHOW transaction_read_only`)
	if err != nil || readOnly == "off" {
		return err
	}
	return &Error{errors.New("it is read-only"), "use the address of the primary, or ?target_session_attrs=read-write"}
}

func (*postgresDialect) isDown(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && len(e.Code) == 5 {
		switch e.Code[:2] {
		case "08", "53", "57": // connection, resources such as the disk, and shutdown
			return true
		}
	}
	_, unreachable := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[net.Error](err)
	return unreachable || network || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrTxDone)
}

// bind numbers the placeholders. No statement has a question mark in a literal.
func (*postgresDialect) bind(query string, args []any) (string, []any) {
	if len(args) == 0 {
		return query, args
	}
	var b strings.Builder
	for n := 1; ; n++ {
		before, after, found := strings.Cut(query, "?")
		b.WriteString(before)
		if !found {
			break
		}
		b.WriteByte('$')
		b.WriteString(strconv.Itoa(n))
		query = after
	}
	converted := make([]any, len(args))
	for i, arg := range args {
		converted[i] = postgresValue(arg)
	}
	return b.String(), converted
}

// postgresValue returns an argument as a value that its column can have.
func postgresValue(arg any) any {
	switch v := arg.(type) {
	case string:
		return postgresText(v)
	case []byte:
		if v == nil { // would be NULL
			return []byte{}
		}
	case bool:
		if v {
			return 1
		}
		return 0
	case time.Duration:
		return int64(v)
	}
	return arg
}

// postgresText replaces what SQLite can store as text and Postgres cannot.
func postgresText(s string) string {
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

var postgresTypes = strings.NewReplacer("INTEGER", "BIGINT", "BLOB", "BYTEA", " STRICT, WITHOUT ROWID", "", " STRICT", "")

func (*postgresDialect) types(ddl string) string { return postgresTypes.Replace(ddl) }

func (*postgresDialect) forUpdate(table string) string { return " FOR UPDATE OF " + table }

func (*postgresDialect) lockTable(ctx context.Context, t tx, table string) error {
	return t.exec(ctx, `LOCK TABLE `+table+` IN SHARE ROW EXCLUSIVE MODE`)
}

func (*postgresDialect) lost(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (e.Code == "40P01" || e.Code == "40001") // deadlock, serialization
}

func (d *postgresDialect) version(ctx context.Context, t tx) (int, error) {
	if err := d.ping(ctx, t); err != nil {
		return 0, err
	}
	if err := t.exec(ctx, `SELECT pg_advisory_xact_lock(?)`, int64(migrationLock)); err != nil {
		return 0, err
	}
	names, err := queryAll(ctx, t, value[string], `SELECT tablename FROM pg_tables WHERE schemaname = current_schema()`)
	if err != nil || len(names) == 0 {
		return 0, err
	}
	for _, name := range names {
		if name == "sandbox_schema" {
			return queryOne(ctx, t, value[int], `SELECT version FROM sandbox_schema`)
		}
	}
	return 0, &Error{fmt.Errorf("it has tables of another program, such as %s", names[0]), "create a database for this server"}
}

func (*postgresDialect) setVersion(ctx context.Context, t tx, version int) error {
	return t.exec(ctx, fmt.Sprintf(`CREATE TABLE IF NOT EXISTS sandbox_schema (version BIGINT NOT NULL);
		DELETE FROM sandbox_schema; INSERT INTO sandbox_schema VALUES (%d)`, version))
}

func (*postgresDialect) elsewhere() string { return "another database" }

// exclude looks for connections of other servers. Each has at least the one that reads the clock.
// Postgres lists a closed connection for a moment longer.
func (*postgresDialect) exclude(ctx context.Context, s *Store, patience time.Duration) error {
	s.stop()
	s.pool.SetMaxOpenConns(1)
	late := time.After(patience)
	for {
		n, err := queryOne(ctx, s.db, value[int], `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = ? AND pid <> pg_backend_pid()`, applicationName)
		if n == 0 || err != nil {
			return err
		}
		select {
		case <-late:
			return ErrInUse
		case <-time.After(50 * time.Millisecond):
		}
	}
}
