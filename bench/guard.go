//go:build linux

package main

import (
	"cmp"
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
	what, yardstick string // names of contenders; * stands for each kind of server
	most            float64
}

var rules = []rule{
	{"python warm *", "python plain", 1},
	{"python persistent *", "python plain", 0.42}, // it is 0.32 to 0.36
	{"python new session *", "python plain", 3},
	{"python warm *, 100 sessions open", "python warm *", 1.6},
	{"pandas warm *", "pandas plain", 0.15},
	{"pandas new session *", "pandas plain", 0.15},
	{"pandas new notebook *", "pandas plain", 0.3},
	{"typescript warm *", "typescript plain", 1},
	{"typescript new session *", "typescript plain", 1.5},
	{"shell warm *", "shell bwrap", 2},
	{"download by a signed link", "download by cat", 2},
}

// likeRoot limits the ordinary user's server, if root's is measured beside it. Root's runs have
// cgroups of their own, so they wait less for a core while other work keeps the machine busy.
var likeRoot = []rule{
	{"python warm ordinary", "python warm root", 2},
	{"python persistent ordinary", "python persistent root", 2},
	{"python new session ordinary", "python new session root", 2},
	{"pandas warm ordinary", "pandas warm root", 2},
	{"pandas new session ordinary", "pandas new session root", 2},
	{"pandas new notebook ordinary", "pandas new notebook root", 2},
	{"typescript warm ordinary", "typescript warm root", 2},
	{"typescript new session ordinary", "typescript new session root", 2},
	{"shell warm ordinary", "shell warm root", 2},
}

// What an idle session may use.
const (
	maxThreads = 12
	maxMemory  = 15e6
)

// rulesFor returns the rules for the kinds of servers that are measured.
func rulesFor(kinds []kind) []rule {
	var list []rule
	for _, r := range rules {
		if !strings.Contains(r.what, "*") {
			list = append(list, r)
			continue
		}
		for _, k := range kinds {
			list = append(list, rule{strings.ReplaceAll(r.what, "*", k.name), strings.ReplaceAll(r.yardstick, "*", k.name), r.most})
		}
	}
	if len(kinds) > 1 {
		list = append(list, likeRoot...)
	}
	return list
}

// attempts is how often in a row a rule must be broken to fail.
const attempts = 3

// guard checks the server against the rules.
func (b *bench) guard(ctx context.Context) error {
	kinds, contenders, err := b.guarded(ctx)
	if ok, err := guardable(os.Stderr, cmp.Or(ctx.Err(), err), b.missing, os.Getenv("REQUIRE_ALL") == "1"); !ok {
		return err
	}
	slow := judge(os.Stderr, rulesFor(kinds), func(names []string) (map[string]time.Duration, error) {
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
	return errors.Join(append(b.excesses, slow)...)
}

// guardable reports whether there is something to judge. Where all is required, nothing may be
// missing.
func guardable(out io.Writer, err, missing error, all bool) (bool, error) {
	switch {
	case errors.Is(err, context.Canceled) || err != nil && all:
		return false, err
	case err != nil:
		fmt.Fprintln(out, "guard: skipped: nothing can be measured here:", err)
		return false, nil
	case missing != nil && all:
		return false, missing
	}
	return true, nil
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

// guarded returns the kinds of servers and the contenders that their rules name, ready to be
// measured.
func (b *bench) guarded(ctx context.Context) ([]kind, []contender, error) {
	kinds, err := b.kinds(ctx)
	if err != nil {
		return nil, nil, err
	}
	var list []contender
	for _, name := range []string{"python", "pandas", "typescript", "shell"} {
		w := works[name]
		for _, c := range append(b.plain(w), b.ours(w, kinds)...) {
			c.name = w.key + " " + c.name
			list = append(list, c)
		}
	}
	for _, k := range kinds {
		if err := b.footprints(ctx, k); err != nil {
			b.excesses = append(b.excesses, err)
		}
		c, err := b.inCrowd(ctx, k, 100)
		if err != nil {
			return nil, nil, err
		}
		list = append(list, c)
	}
	f, err := b.largeFile(ctx, kinds[0].server, 2e8)
	if err != nil {
		return nil, nil, err
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
	for _, r := range rulesFor(kinds) {
		for _, name := range []string{r.what, r.yardstick} {
			if !slices.ContainsFunc(list, func(c contender) bool { return c.name == name }) {
				return nil, nil, errors.New("unknown contender " + name)
			}
		}
	}
	return kinds, list, nil
}

// excess returns an error if sessions use more than they may, together.
func (u use) excess(out io.Writer, server string, sessions int) error {
	threads, memory := float64(u.threads)/float64(sessions), float64(u.pss)/float64(sessions)
	sentence := fmt.Sprintf("an idle session of %s has %s threads and %s; allowed are %d and %s", server, count(threads), u.memory(memory), maxThreads, mb(maxMemory))
	if threads <= maxThreads && (u.hidden || memory <= maxMemory) {
		fmt.Fprintf(out, "guard: %s\n", sentence)
		return nil
	}
	fmt.Fprintf(out, "guard: TOO MUCH: %s\n", sentence)
	return errors.New(sentence)
}

// inCrowd opens many sessions of another server and returns a contender that runs in one of them.
// It notes if the idle sessions use too much.
func (b *bench) inCrowd(ctx context.Context, k kind, many int) (contender, error) {
	full, err := b.startServer(ctx, k, "full")
	if err != nil {
		return contender{}, err
	}
	before, err := full.settled(ctx)
	if err != nil {
		return contender{}, err
	}
	if err := full.open(ctx, 0, many); err != nil {
		return contender{}, err
	}
	after, err := full.settled(ctx)
	if err != nil {
		return contender{}, err
	}
	if err := after.minus(before).excess(os.Stderr, titles[k.name], many); err != nil {
		b.excesses = append(b.excesses, err)
	}
	w := works["python"]
	return contender{name: fmt.Sprintf("python warm %s, %d sessions open", k.name, many), n: b.scaled(w.rounds), want: w.want,
		do: func(ctx context.Context) ([]byte, error) { return full.run(ctx, openSession(0), w.language, w.code) }}, nil
}
