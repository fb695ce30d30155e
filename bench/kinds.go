//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// Kinds of servers. The names of their contenders and values end with them.
const (
	rootKind     = "root"
	ordinaryKind = "ordinary"
	dockerKind   = "docker"
)

// titles name the kinds in sentences and headings.
var titles = map[string]string{rootKind: "root's server", ordinaryKind: "the ordinary user's server", dockerKind: "the server on Docker"}

// kind is a kind of server on the jail: root's, or an ordinary user's.
type kind struct {
	name   string
	user   *ordinaryUser // nil: the user of this process
	server *server       // shared by the parts
}

// kinds returns the kinds of servers that can be measured here, root's first, each with a server
// that the parts share. An ordinary user's bench measures its own kind only.
func (b *bench) kinds(ctx context.Context) ([]kind, error) {
	if b.shared != nil {
		return b.shared, nil
	}
	own := kind{name: rootKind}
	if os.Geteuid() != 0 {
		own.name = ordinaryKind
		b.leaveOut("Root's server", fmt.Errorf("uid %d ran the bench", os.Geteuid()))
	}
	var err error
	if own.server, err = b.startServer(ctx, own, "shared"); err != nil {
		return nil, err
	}
	kinds := []kind{own}
	if own.name == rootKind {
		other, err := b.ordinary(ctx)
		switch {
		case err == nil:
			kinds = append(kinds, other)
		case ctx.Err() != nil:
			return nil, err
		default:
			b.leaveOut("The ordinary user's server", err)
		}
	}
	b.shared = kinds
	return kinds, nil
}

// ordinary makes the ordinary user and starts its server.
func (b *bench) ordinary(ctx context.Context) (kind, error) {
	needed := []string{b.dir, filepath.Dir(b.binary), b.runners}
	for _, program := range []string{"python", "node"} {
		if prefix := prefixOf(b.program(program)); prefix != "" {
			needed = append(needed, prefix)
		}
	}
	var err error
	if b.user, err = newOrdinaryUser(b.dir, needed); err != nil {
		return kind{}, err
	}
	k := kind{name: ordinaryKind, user: b.user}
	k.server, err = b.startServer(ctx, k, "shared")
	return k, err
}

// own returns the first kind, whose user is that of this process.
func (b *bench) own(ctx context.Context) (kind, error) {
	kinds, err := b.kinds(ctx)
	if err != nil {
		return kind{}, err
	}
	return kinds[0], nil
}

// kindNamed returns a kind, or false if it is left out here.
func (b *bench) kindNamed(ctx context.Context, name string) (kind, bool, error) {
	kinds, err := b.kinds(ctx)
	for _, k := range kinds {
		if k.name == name {
			return k, true, err
		}
	}
	return kind{}, false, err
}

// leaveOut remembers why a kind of server is not measured.
func (b *bench) leaveOut(what string, why error) {
	b.missing = fmt.Errorf("%s was left out: %w", what, why)
	fmt.Fprintln(os.Stderr, "bench:", b.missing)
}
