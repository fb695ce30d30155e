package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

const (
	// copyBatch and copyBytes are how many rows, and about how much, Copy inserts with one
	// statement.
	copyBatch = 50
	copyBytes = 8 << 20
	// closingTime is how long Postgres may list the connections of a server that has ended. A busy
	// machine needs some seconds.
	closingTime = 10 * time.Second
)

// Contents is what a table has: how many rows, and a hash of them that does not depend on their
// order or on the kind of database.
type Contents struct {
	Table string
	Rows  int
	Hash  [sha256.Size]byte
}

// Copied is what Copy did.
type Copied struct {
	From, To string // without passwords
	Already  bool   // the target had the same contents before
}

// Copy copies all tables from one database to another one in one transaction: the target gets all
// rows or none. It reports each table whose copy has the same contents as the original. The target
// must be empty, or have the same contents already.
func Copy(ctx context.Context, from, to string, report func(Contents)) (Copied, error) {
	return copyAll(ctx, from, to, closingTime, report)
}

// copyAll is Copy. It waits up to patience for servers that are ending.
func copyAll(ctx context.Context, from, to string, patience time.Duration, report func(Contents)) (done Copied, err error) {
	if err := checkExists(ctx, from); err != nil {
		return done, err
	}
	a, _ := os.Stat(from) // nil for a URL
	if b, err := os.Stat(to); err == nil && os.SameFile(a, b) {
		return done, &Error{fmt.Errorf("the source and the target are both %s", from), "name another target"}
	}
	source, err := openAlone(ctx, from, patience)
	if err != nil {
		return done, err
	}
	defer source.Close()
	target, err := openAlone(ctx, to, patience)
	if err != nil {
		return done, err
	}
	defer target.Close()
	done.From, done.To = source.String(), target.String()
	err = source.transact(ctx, func(r tx) error {
		return target.transact(ctx, func(w tx) (err error) {
			done.Already, err = copyTables(ctx, r, w, report)
			return err
		})
	})
	if err != nil {
		err = target.explain(fmt.Sprintf("copying %s to", source), err)
	}
	return done, err
}

// checkExists refuses a source that Open would make.
func checkExists(ctx context.Context, where string) error {
	found, err := Check(ctx, where)
	if err != nil || found.Version > 0 {
		return err
	}
	if _, err := os.Stat(where); !IsURL(where) && errors.Is(err, fs.ErrNotExist) {
		return &Error{fmt.Errorf("there is no file %s", where), "give the path of the server's state.db"}
	}
	return &Error{fmt.Errorf("the database %s is empty", found.Where), "there is nothing to copy"}
}

// openAlone opens a database that no other process has open.
func openAlone(ctx context.Context, where string, patience time.Duration) (*Store, error) {
	s, err := Open(ctx, where)
	if err != nil {
		return nil, err
	}
	if err := s.db.exclude(ctx, s, patience); err != nil {
		s.Close()
		if errors.Is(err, ErrInUse) {
			err = &Error{fmt.Errorf("the database %s: %w", s, err), "stop the servers that use it, and other copies"}
		}
		return nil, err
	}
	s.db.timeout = 0 // a copy may take long
	return s, nil
}

func (t tx) lockTables(ctx context.Context) error {
	for _, table := range tables {
		if err := t.lockTable(ctx, t, table); err != nil {
			return err
		}
	}
	return nil
}

// copyTables copies all tables, or finds that they are the same already.
func copyTables(ctx context.Context, r, w tx, report func(Contents)) (already bool, err error) {
	if err := errors.Join(r.lockTables(ctx), w.lockTables(ctx)); err != nil {
		return false, err
	}
	for _, table := range tables {
		c, err := w.contents(ctx, table, nil)
		if err != nil {
			return false, err
		}
		already = already || c.Rows > 0
	}
	for _, table := range tables {
		insert := w.inserter(ctx, table)
		if already {
			insert = nil // only compare
		}
		original, err := r.contents(ctx, table, insert)
		if err != nil {
			return false, err
		}
		copied, err := w.contents(ctx, table, nil)
		switch {
		case err != nil:
			return false, err
		case copied == original:
			report(copied)
		case already:
			return false, &Error{
				fmt.Errorf("it is not empty: it has other %s than the source, so it is of another installation or time", table),
				"use an empty database, or for SQLite a file that does not exist",
			}
		default:
			return false, fmt.Errorf("the copy of %s differs: %d rows with hash %x, the source has %d with %x",
				table, copied.Rows, copied.Hash, original.Rows, original.Hash)
		}
	}
	return already, ctx.Err()
}

// contents returns what a table has. It passes the rows, with the names of their columns, to each
// in batches, unless each is nil.
func (t tx) contents(ctx context.Context, table string, each func(columns []string, rows [][]any) error) (Contents, error) {
	c := Contents{Table: table}
	rows, err := t.QueryContext(ctx, `SELECT * FROM `+table)
	if err != nil {
		return c, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return c, err
	}
	var batch [][]any
	bytes := 0 // of batch
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		defer func() { batch, bytes = nil, 0 }()
		return each(columns, batch)
	}
	for rows.Next() {
		row, targets := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			targets[i] = &row[i]
		}
		if err := rows.Scan(targets...); err != nil {
			return c, err
		}
		for i, v := range row {
			switch v := v.(type) {
			case []byte:
				if v == nil { // how SQLite's driver returns an empty one
					row[i] = []byte{}
				}
				bytes += len(v)
			case string:
				bytes += len(v)
			}
		}
		c.add(columns, row)
		if each != nil {
			batch = append(batch, row)
		}
		if len(batch) < copyBatch && bytes < copyBytes {
			continue
		}
		if err := flush(); err != nil {
			return c, err
		}
	}
	if err := rows.Err(); err != nil {
		return c, err
	}
	return c, flush()
}

// add adds a row. Rows differ, since they have keys, so their hashes do not cancel each other out.
func (c *Contents) add(columns []string, row []any) {
	h := sha256.New()
	field := func(kind byte, b []byte) {
		h.Write(binary.BigEndian.AppendUint64([]byte{kind}, uint64(len(b))))
		h.Write(b)
	}
	for i, v := range row {
		field('c', []byte(columns[i]))
		switch v := v.(type) {
		case int64:
			field('i', binary.BigEndian.AppendUint64(nil, uint64(v)))
		case string:
			field('s', []byte(postgresText(v)))
		case []byte:
			field('b', v)
		default:
			panic(fmt.Sprintf("%s.%s is a %T", c.Table, columns[i], v))
		}
	}
	for i, b := range h.Sum(nil) {
		c.Hash[i] ^= b
	}
	c.Rows++
}

// inserter returns a function that inserts rows into a table.
func (t tx) inserter(ctx context.Context, table string) func(columns []string, rows [][]any) error {
	return func(columns []string, rows [][]any) error {
		one := "(" + strings.Repeat("?, ", len(columns)-1) + "?)"
		var args []any
		for _, row := range rows {
			args = append(args, row...)
		}
		return t.exec(ctx, `INSERT INTO `+table+` (`+strings.Join(columns, ", ")+`) VALUES `+
			strings.Repeat(one+", ", len(rows)-1)+one, args...)
	}
}
