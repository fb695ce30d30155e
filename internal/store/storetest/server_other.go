//go:build !unix

package storetest

import "errors"

func startServer() (string, error) { return "", errors.New("tests start it on Unix only") }
