package versionrange

import (
	"strings"
	"testing"
)

func TestAllows(t *testing.T) {
	for wanted, versions := range map[string]string{ // those that are not allowed follow a bar
		"":                       "1 | ",
		"==99":                   "99 99.0 99.0.0 99.post1 | 1.17 98 99.1 100 9",
		"== 1.2.0":               "1.2 v1.2 | 1.2.1",
		"==1.2.*":                "1.2 1.2.0 1.2.9 1.2rc1 | 1.3 1.20 1",
		"===1.0":                 "1.0 | 2",
		"!=3.9.*":                "3.10 3.8.9 | 3.9 3.9.1",
		"!=1.5":                  "1.6 1.5rc1 | 1.5",
		">=3.10":                 "3.10 3.10.1 3.11.7 4 3.10rc1 | 3.9.18 2.7 3",
		">=3.9, <3.13":           "3.9 3.12.7 3.13rc1 | 3.13 3.13.0 3.8 4.0",
		"<3.11.7":                "3.11.6 | 3.11.7 3.12",
		">3.11":                  "3.11.7 3.12 | 3.11 3.11.0 3.10",
		"<=2.0":                  "2 2.0.0 1.9 | 2.0.1 3",
		"~=3.10":                 "3.10 3.14 | 3.9 4.0",
		"~=1.4.2":                "1.4.2 1.4.9 | 1.4.1 1.5",
		"(>=2,<3)":               "2.5 | 3.1 1",
		">=1; x < '3'":           "1 2 | 0.9",
		"99":                     "99.1.0 99.0.0 | 4.17.21",
		"4.17.21":                "4.17.21 | 4.17.20",
		"^4.1.0":                 "4.1.0 4.9.9 | 4.0.9 5.0.0",
		"^1.2.3":                 "1.2.3 1.9.0 | 1.2.2 2.0.0",
		"^0.2.3":                 "0.2.3 0.2.9 | 0.2.2 0.3.0 1.2.3",
		"^0.0.3":                 "0.0.3 | 0.0.2 0.0.4 0.1.3",
		"^0.0.0":                 "0.0.0 | 0.0.1",
		"^0.0":                   "0.0.0 0.0.9 | 0.1.0",
		"^0":                     "0.0.1 0.9.0 | 1.0.0",
		"~4.1.2":                 "4.1.9 | 4.2.0 4.1.1",
		"=1.x":                   "1.5.0 | 2.0.0",
		"latest":                 "1.0 99 | ",
		"^1 || ^2":               "3 | ", // not decided
		"1.0 - 2.0":              "3 | ",
		"==1!2.0":                "2.0 | ",
		">=2":                    "weird 1!1.0 3 | 1",
		">=99999999999999999999": "99999999999999999999 | 5",
	} {
		allowed, refused, _ := strings.Cut(versions, "|")
		for version := range strings.FieldsSeq(allowed) {
			if !Allows(wanted, version) {
				t.Errorf("%q refuses %s", wanted, version)
			}
		}
		for version := range strings.FieldsSeq(refused) {
			if Allows(wanted, version) {
				t.Errorf("%q allows %s", wanted, version)
			}
		}
	}
}

func TestNormalizeName(t *testing.T) {
	for name, want := range map[string]string{"Six": "six", "zope.interface": "zope-interface", "a__B-.c": "a-b-c", "": ""} {
		if got := NormalizeName(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
