package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
)

// Found is what Check found.
type Found struct {
	Where           string // the path or the URL, without a password
	Version, Newest int    // of the tables: 0 if there are none; the one that Open makes
}

// Check tries whether Open would work, and changes nothing.
func Check(ctx context.Context, where string) (Found, error) {
	found := Found{Where: where, Newest: len(migrations)}
	if _, err := os.Stat(where); !IsURL(where) && !otherURL.MatchString(where) && errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	s, err := connect(where)
	if err != nil {
		return Found{}, err
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(ctx, s.db.patience())
	defer cancel()
	err = s.transact(ctx, func(t tx) error {
		found.Version, err = t.checkVersion(ctx)
		return err
	})
	if err != nil {
		err = s.explain("opening", err)
	}
	found.Where = s.String()
	return found, err
}
