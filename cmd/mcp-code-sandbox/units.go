package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// decodeNumber and decodeDuration have clearer errors than kong's own decoders.
func decodeNumber(ctx *kong.DecodeContext, target reflect.Value) error {
	var s string
	if err := ctx.Scan.PopValueInto("number", &s); err != nil {
		return err
	}
	n, err := strconv.ParseFloat(s, 64)
	if target.CanFloat() {
		if err != nil {
			return fmt.Errorf("must be a number, such as 1.5, not %q", s)
		}
		target.SetFloat(n)
		return nil
	}
	i, err := strconv.Atoi(s)
	if err != nil {
		return fmt.Errorf("must be a whole number, not %q", s)
	}
	target.SetInt(int64(i))
	return nil
}

var durationUnits = map[string]struct {
	name   string
	length time.Duration
}{"s": {"seconds", time.Second}, "m": {"minutes", time.Minute}, "h": {"hours", time.Hour}}

// decodeDuration reads a plain number in the unit of the setting's tag. The setting's name also
// states the unit.
func decodeDuration(ctx *kong.DecodeContext, target reflect.Value) error {
	var s string
	if err := ctx.Scan.PopValueInto("duration", &s); err != nil {
		return err
	}
	s = strings.TrimSpace(s)
	unit := durationUnits[ctx.Value.Tag.Get("unit")]
	d, err := time.ParseDuration(s)
	if n, nerr := strconv.ParseFloat(s, 64); nerr == nil && math.Abs(n)*float64(unit.length) < math.MaxInt64/2 {
		d, err = time.Duration(n*float64(unit.length)), nil
	}
	if err != nil {
		return fmt.Errorf("%q is not a valid duration; write a number of %s, or like 1h30m", s, unit.name)
	}
	target.SetInt(int64(d))
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

// logLevel also accepts the names of Python's logging.
type logLevel slog.Level

func (l *logLevel) UnmarshalText(p []byte) error {
	python := map[string]string{"WARNING": "WARN", "CRITICAL": "ERROR"}
	name := strings.ToUpper(strings.TrimSpace(string(p)))
	if err := (*slog.Level)(l).UnmarshalText([]byte(cmp.Or(python[name], name))); err != nil {
		return fmt.Errorf("%q is not a valid log level; use DEBUG, INFO, WARN or ERROR", p)
	}
	return nil
}
