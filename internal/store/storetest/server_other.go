//go:build !unix

package storetest

import (
	"errors"
	"testing"
)

func startServer() (instance, error) { return instance{}, errors.New("tests start it on Unix only") }

// Stop is for tests that Postgres has skipped here.
func Stop(tb testing.TB) (start func()) { panic("no Postgres") }
