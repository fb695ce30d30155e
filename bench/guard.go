//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// rule limits one contender's time to a multiple of another's. The margins are generous: they catch
// a change that makes something several times slower, on any machine.
type rule struct {
	what, yardstick string // names of contenders
	most            float64
}

var rules = []rule{
	{"python warm jail", "python plain", 1},
	{"python persistent jail", "python plain", 1},
	{"python new session jail", "python plain", 6},
	{"python warm jail, 100 sessions open", "python warm jail", 1.6},
	{"pandas warm jail", "pandas plain", 0.3},
	{"typescript warm jail", "typescript plain", 1.6},
	{"shell warm jail", "shell bwrap", 2},
	{"download by a signed link", "download by cat", 2},
}

// attempts is how often in a row a rule must be broken to fail.
const attempts = 3

// guard checks the server against the rules.
func (b *bench) guard(ctx context.Context) error {
	contenders, err := b.guarded(ctx)
	if err != nil {
		if ctx.Err() == nil && os.Getenv("REQUIRE_ALL") != "1" {
			fmt.Fprintln(os.Stderr, "guard: skipped: nothing can be measured here:", err)
			return nil
		}
		return err
	}
	return judge(os.Stderr, rules, func(names []string) (map[string]time.Duration, error) {
		list := slices.DeleteFunc(slices.Clone(contenders), func(c contender) bool { return !slices.Contains(names, c.name) })
		taken, err := measure(ctx, b.budget, list)
		if err != nil {
			return nil, err
		}
		medians := map[string]time.Duration{}
		for _, t := range taken {
			medians[t.name] = t.p50()
		}
		return medians, nil
	})
}

// judge measures the contenders of all rules, then again those of broken rules, and fails with the
// rules that stay broken.
func judge(out io.Writer, rules []rule, medians func(names []string) (map[string]time.Duration, error)) error {
	for attempt := 1; ; attempt++ {
		var names []string
		for _, r := range rules {
			names = append(names, r.what, r.yardstick)
		}
		slices.Sort(names)
		took, err := medians(slices.Compact(names))
		if err != nil {
			return err
		}
		var broken []rule
		var sentences []string
		for _, r := range rules {
			ratio := float64(took[r.what]) / float64(took[r.yardstick])
			sentence := fmt.Sprintf("%s takes %s, %s of %s (%s); allowed is %s", r.what, ms(took[r.what]), times(ratio), r.yardstick, ms(took[r.yardstick]), times(r.most))
			if ratio <= r.most {
				fmt.Fprintf(out, "guard: %s\n", sentence)
				continue
			}
			fmt.Fprintf(out, "guard: TOO SLOW, attempt %d of %d: %s\n", attempt, attempts, sentence)
			broken = append(broken, r)
			sentences = append(sentences, sentence)
		}
		switch {
		case len(broken) == 0:
			return nil
		case attempt == attempts:
			return fmt.Errorf("slower than allowed, %d times in a row:\n  %s", attempts, strings.Join(sentences, "\n  "))
		}
		rules = broken
	}
}

// guarded returns the contenders that the rules name, ready to be measured.
func (b *bench) guarded(ctx context.Context) ([]contender, error) {
	const many = 100
	jail, err := b.jail(ctx)
	if err != nil {
		return nil, err
	}
	full, err := b.startServer(ctx, "full", "SANDBOX_BACKEND=jail")
	if err != nil {
		return nil, err
	}
	b.fullServer = full
	if err := full.open(ctx, 0, many); err != nil {
		return nil, err
	}
	var list []contender
	for _, name := range []string{"python", "pandas", "typescript", "shell"} {
		w := works[name]
		for _, c := range append(b.plain(w), b.ours(w, "jail", jail)...) {
			c.name = w.key + " " + c.name
			list = append(list, c)
		}
	}
	w := works["python"]
	list = append(list, contender{name: fmt.Sprintf("python warm jail, %d sessions open", many), n: b.scaled(w.rounds), want: w.want,
		do: func(ctx context.Context) ([]byte, error) { return full.run(ctx, openSession(0), w.language, w.code) }})

	f, err := b.largeFile(ctx, jail, 2e8)
	if err != nil {
		return nil, err
	}
	for _, c := range f.contenders(b.scaled(12)) {
		switch c.name {
		case byCat:
			c.name = "download by cat"
		case byLink:
			c.name = "download by a signed link"
		}
		list = append(list, c)
	}
	for _, r := range rules {
		for _, name := range []string{r.what, r.yardstick} {
			if !slices.ContainsFunc(list, func(c contender) bool { return c.name == name }) {
				return nil, errors.New("unknown contender " + name)
			}
		}
	}
	return list, nil
}
