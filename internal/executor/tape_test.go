package executor

import (
	"bytes"
	"testing"
)

func TestTape(t *testing.T) {
	short := &tape{allowance: allowance{limit: 10}}
	short.write(Stdout, []byte("ab"))
	short.write(Stdout, []byte("c\xe2\x82")) // the first part of a euro sign
	long := &tape{allowance: allowance{limit: 10}}
	var all []byte
	for i := range 100 {
		p := bytes.Repeat([]byte{byte('a' + i%26)}, i%17)
		long.write(Stdout, p)
		all = append(all, p...)
		if len(long.data) > 20 || long.end() != int64(len(all)) || !bytes.HasSuffix(all, long.data) || len(all) >= 10 && len(long.data) < 10 {
			t.Fatalf("after %d bytes it holds %d up to %d", len(all), len(long.data), long.end())
		}
	}
	end := long.end()
	cut := &tape{allowance: allowance{limit: 4}}
	cut.write(Stdout, []byte("xx€yz")) // the euro sign loses its head
	for _, tt := range []struct {
		name            string
		tape            *tape
		cursor          int64
		all             bool
		want            string
		missed, cursor2 int64
	}{
		{"from the start", short, 0, false, "abc", 0, 3},
		{"all of it", short, 0, true, "abc\xe2\x82", 0, 5},
		{"the rest", short, 3, true, "\xe2\x82", 0, 5},
		{"half a character", short, 3, false, "", 0, 3},
		{"a cursor of nowhere", short, 99, true, "", 0, 5},
		{"a cursor of less than nowhere", short, -99, true, "abc\xe2\x82", 0, 5},
		{"more than is kept", long, 1, true, string(long.data), long.start - 1, end},
		{"near the end", long, end - 2, true, string(all[len(all)-2:]), 0, end},
		{"a character whose head is gone", cut, 0, true, "yz", 5, 7},
		{"nothing", &tape{}, 5, true, "", 0, 0},
	} {
		got := tt.tape.since(tt.cursor, tt.all)
		if string(got.Data) != tt.want || got.Missed != tt.missed || got.Cursor != tt.cursor2 {
			t.Errorf("%s: %q, missed %d, cursor %d; want %q, %d, %d", tt.name, got.Data, got.Missed, got.Cursor, tt.want, tt.missed, tt.cursor2)
		}
	}
}
