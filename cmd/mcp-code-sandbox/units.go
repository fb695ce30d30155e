package main

import (
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// decodeInt and decodeFloat have clearer errors than kong's own decoders.
func decodeInt(ctx *kong.DecodeContext, target reflect.Value) error {
	var s string
	if err := ctx.Scan.PopValueInto("number", &s); err != nil {
		return err
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return fmt.Errorf("must be a whole number, not %q", s)
	}
	target.SetInt(int64(n))
	return nil
}

func decodeFloat(ctx *kong.DecodeContext, target reflect.Value) error {
	var s string
	if err := ctx.Scan.PopValueInto("number", &s); err != nil {
		return err
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return fmt.Errorf("must be a number, such as 1.5, not %q", s)
	}
	target.SetFloat(n)
	return nil
}

// byteSize is a number of bytes, written as 512MB, 512m, 1.5GiB or a plain number. 1 KB is 1024
// bytes, as in Docker.
type byteSize int64

var sizeUnits = []struct {
	letter byte
	shift  uint
}{{'t', 40}, {'g', 30}, {'m', 20}, {'k', 10}}

func (b *byteSize) UnmarshalText(p []byte) error {
	s := strings.ToLower(strings.TrimSpace(string(p)))
	s = strings.TrimSuffix(strings.TrimSuffix(s, "b"), "i")
	factor := 1.0
	for _, u := range sizeUnits {
		if n := len(s) - 1; n > 0 && s[n] == u.letter {
			s, factor = s[:n], float64(uint64(1)<<u.shift)
			break
		}
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || v < 0 || v*factor > math.MaxInt64/2 {
		return fmt.Errorf("%q is not a size; write it like 512MB, 512m or 536870912 (units: KB, MB, GB, TB)", p)
	}
	*b = byteSize(v * factor)
	return nil
}

func (b byteSize) String() string {
	for _, u := range sizeUnits {
		if n := int64(1) << u.shift; int64(b) >= n && int64(b)%n == 0 {
			return strconv.FormatInt(int64(b)/n, 10) + strings.ToUpper(string(u.letter)) + "B"
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// optionalSize distinguishes a size of 0 from an unset one.
type optionalSize struct {
	byteSize
	isSet bool
}

func (o *optionalSize) UnmarshalText(p []byte) error {
	o.isSet = true
	return o.byteSize.UnmarshalText(p)
}

// seconds is a duration whose plain number counts seconds, as its setting's name says.
type seconds time.Duration

func (d *seconds) UnmarshalText(p []byte) error {
	v, err := parseDuration(string(p), time.Second, "seconds")
	*d = seconds(v)
	return err
}

// minutes is a duration whose plain number counts minutes.
type minutes time.Duration

func (d *minutes) UnmarshalText(p []byte) error {
	v, err := parseDuration(string(p), time.Minute, "minutes")
	*d = minutes(v)
	return err
}

// hours is a duration whose plain number counts hours.
type hours time.Duration

func (d *hours) UnmarshalText(p []byte) error {
	v, err := parseDuration(string(p), time.Hour, "hours")
	*d = hours(v)
	return err
}

func parseDuration(s string, unit time.Duration, units string) (time.Duration, error) {
	s = strings.TrimSpace(s)
	if n, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(n)*float64(unit) < math.MaxInt64/2 {
		return time.Duration(n * float64(unit)), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a valid duration; write a number of %s, or like 1h30m", s, units)
	}
	return d, nil
}

// logLevel also accepts the names of Python's logging.
type logLevel slog.Level

func (l *logLevel) UnmarshalText(p []byte) error {
	switch strings.ToUpper(strings.TrimSpace(string(p))) {
	case "DEBUG":
		*l = logLevel(slog.LevelDebug)
	case "INFO":
		*l = logLevel(slog.LevelInfo)
	case "WARN", "WARNING":
		*l = logLevel(slog.LevelWarn)
	case "ERROR", "CRITICAL":
		*l = logLevel(slog.LevelError)
	default:
		return fmt.Errorf("%q is not a valid log level; use DEBUG, INFO, WARN or ERROR", p)
	}
	return nil
}
