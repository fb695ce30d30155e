package packages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// keep puts a file into a store.
func keep(t *testing.T, s *store, content string) {
	t.Helper()
	if err := s.put(nil, sum(content), s.limit, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
}

// TestSmallFiles: a small file takes a block and an inode. A full cache frees a part of itself, so
// it is not scanned for each file, but it notices what other processes store.
func TestSmallFiles(t *testing.T) {
	dir := t.TempDir()
	limit := 100 * onDisk(1)
	s, err := openStore(dir, limit)
	if err != nil {
		t.Fatal(err)
	}
	want := func(files int) {
		t.Helper()
		if n, size, err := Usage(dir); n != files || size != int64(files)*onDisk(1) || err != nil {
			t.Errorf("%d files of %d bytes, %v, want %d", n, size, err, files)
		}
	}
	for i := range 100 {
		keep(t, s, fmt.Sprint(i))
	}
	want(100)
	keep(t, s, "one more")
	want(90)
	scanned := s.stored
	for i := range 6 {
		keep(t, s, fmt.Sprint("free ", i))
		if scanned += onDisk(1); s.stored != scanned {
			t.Error("the cache was scanned although it has room")
		}
	}
	want(96)
	for i := range 20 { // as another process does
		if err := os.WriteFile(s.path(sum(fmt.Sprint("other ", i))), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	keep(t, s, "noticed")
	want(90)
}

// TestVerifiedOnce: a file is hashed once for all that want it at the same time.
func TestVerifiedOnce(t *testing.T) {
	s, err := openStore(t.TempDir(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	name := sum("as it was")
	if err := os.WriteFile(s.path(name), []byte("damaged"), 0o600); err != nil { // who hashes it finds this
		t.Fatal(err)
	}
	proceed, found := make(chan struct{}), make(chan bool, 2)
	go func() {
		_, _ = s.work.do(t.Context(), name, time.Hour, func(context.Context) (struct{}, error) {
			<-proceed
			s.note(name, int64(len("damaged")))
			return struct{}{}, nil
		})
	}()
	awaitWaiters(&s.work, 1)
	for range 2 {
		go func() {
			f, err := s.cached(t.Context(), name)
			if err == nil && f != nil {
				_ = f.Close()
			}
			found <- f != nil
		}()
	}
	await(&s.work.mu, func() bool { return s.work.calls[name].waiters == 3 || len(found) > 0 })
	close(proceed)
	for range 2 {
		if !<-found {
			t.Error("it was hashed again")
		}
	}
}

// TestVerificationStops: hashing ends when nobody waits for it, and the file stays.
func TestVerificationStops(t *testing.T) {
	s, err := openStore(t.TempDir(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	keep(t, s, "1.0")
	clear(s.verified)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.verify(ctx, sum("1.0")); !errors.Is(err, context.Canceled) || len(s.verified) > 0 {
		t.Errorf("%v, %v", err, s.verified)
	}
	f, err := s.cached(t.Context(), sum("1.0"))
	if f == nil || err != nil {
		t.Fatalf("the file is gone: %v", err)
	}
	_ = f.Close()
	if s.verified[sum("1.0")] != 3 || len(s.reading) != 0 {
		t.Errorf("%v, %d files are open", s.verified, len(s.reading))
	}
}

// TestDamagedTwice: processes that find a damaged file at the same time all take it for missing.
func TestDamagedTwice(t *testing.T) {
	dir := t.TempDir()
	var stores []*store
	for range 4 {
		s, err := openStore(dir, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		stores = append(stores, s)
	}
	for i := range 200 {
		name := sum(fmt.Sprint(i))
		if err := os.WriteFile(stores[0].path(name), []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for _, s := range stores {
			wg.Go(func() {
				if f, err := s.cached(t.Context(), name); f != nil || err != nil {
					t.Errorf("%v, %v", f, err)
				}
			})
		}
		wg.Wait()
	}
}
