package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/publicsuffix"

	"mcp-code-sandbox/internal/untrusted"
)

// Limits of names.
const (
	maxName  = 253
	maxLabel = 63
)

// target is where a connection goes. Its name is in lower case, without a trailing dot.
type target struct {
	name string
	port uint16
}

// String returns the entry in hosts that allows the target.
func (t target) String() string {
	if t.port == 443 || t.port == 80 || t.port == 0 {
		return t.name
	}
	return t.address()
}

func (t target) address() string { return net.JoinHostPort(t.name, strconv.Itoa(int(t.port))) }

// rule allows one port of a name, or of every name below it.
type rule struct {
	target
	below bool
}

func (r rule) String() string {
	if r.below {
		return "*." + r.address()
	}
	return r.address()
}

// covers reports whether r allows everything that other does. A wildcard ends at the public
// suffixes below its name: *.amazonaws.com covers sts.amazonaws.com, but nobody's bucket.
func (r rule) covers(other rule) bool {
	switch {
	case r.port != other.port:
		return false
	case r.below:
		return (strings.HasSuffix(other.name, "."+r.name) || other.below && other.name == r.name) &&
			len(other.publicSuffix()) <= len(r.name)
	}
	return !other.below && r.name == other.name
}

// publicSuffix returns the part of a name below which names have many owners.
func (r rule) publicSuffix() string {
	name := r.name
	if r.below {
		name = "_." + name // the list has wildcards of its own, so ask about a name below
	}
	suffix, _ := publicsuffix.PublicSuffix(name)
	return suffix
}

func allows(rules []rule, want rule) bool {
	return slices.ContainsFunc(rules, func(r rule) bool { return r.covers(want) })
}

// CheckEntry returns an error that says what to write if text cannot stand in a list of hosts.
func CheckEntry(text string) error {
	_, err := parseEntry(text)
	return err
}

// Check returns the rules that a run's hosts mean: "name:port" or "*.name:port".
func (e *Egress) Check(hosts []string) ([]string, error) {
	var list []string
	for _, text := range hosts {
		rules, err := parseEntry(text)
		if err != nil {
			return nil, fmt.Errorf("hosts: %w", err)
		}
		// A name alone means two ports. The ceiling may allow one of them.
		within := slices.DeleteFunc(rules, func(r rule) bool { return !e.isWithin(r) })
		if len(within) == 0 {
			return nil, fmt.Errorf("hosts: this server does not allow %s. It allows: %s. The operator can add others to network.allow",
				quote(text), e.Allowed())
		}
		for _, r := range within {
			if s := r.String(); !slices.Contains(list, s) {
				list = append(list, s)
			}
		}
	}
	return list, nil
}

// isWithin reports whether the ceiling allows a rule.
func (e *Egress) isWithin(r rule) bool { return e.ceiling == nil || allows(e.ceiling, r) }

// Allowed describes the ceiling in a few words, or returns "" if there is none.
func (e *Egress) Allowed() string {
	const most = 10
	list := e.cfg.Ceiling
	switch {
	case list == nil:
		return ""
	case len(list) == 0:
		return "none"
	case len(list) > most:
		return strings.Join(list[:most], ", ") + fmt.Sprintf(" and %d more", len(list)-most)
	}
	return strings.Join(list, ", ")
}

// parseEntry returns what an entry of a list of hosts allows: a port, or 443 and 80.
func parseEntry(text string) ([]rule, error) {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%s: %s", quote(text), fmt.Sprintf(format, args...))
	}
	isOdd := func(c rune) bool { return c <= ' ' || c == 0x7f }
	switch {
	case text == "":
		return nil, errors.New("an entry must not be empty")
	case len(text) > maxName+len("*.")+len(".:65535"):
		return nil, wrong("is longer than a host's name can be")
	case strings.ContainsFunc(text, isOdd):
		return nil, wrong("contains a space or a control character: write one name per entry")
	case strings.ContainsAny(text, `/\?#`):
		better := "api.example.com"
		if u, err := url.Parse(text); err == nil && CheckEntry(u.Host) == nil {
			better = u.Host
		}
		return nil, wrong("is the address of a page: write the host's name only, such as %s", better)
	case strings.Contains(text, "@"):
		return nil, wrong("contains a user: write the host's name only, such as api.example.com")
	case text == "*":
		return nil, wrong("would be every host: name them, or a part such as *.example.org")
	}
	host, ports := text, []uint16{443, 80}
	if name, port, ok := strings.Cut(text, ":"); ok && !isAddress(text) {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
			return nil, wrong("has no valid port: write a name and a number from 1 to 65535, such as db.example.com:5432")
		}
		host, ports = name, []uint16{uint16(n)}
	}
	host, below := strings.CutPrefix(host, "*.")
	name, err := parseName(host, below)
	if err != nil {
		return nil, wrong("%v", err)
	}
	if below && len(rule{target{name: name}, true}.publicSuffix()) >= len(name) {
		return nil, wrong("covers hosts of many owners: write the part that you need, such as *.example.%s", name)
	}
	var rules []rule
	for _, port := range ports {
		rules = append(rules, rule{target{name, port}, below})
	}
	return rules, nil
}

// parseName returns a host's name in its one form. Names of one label are valid only below.
func parseName(text string, below bool) (string, error) {
	name := strings.TrimSuffix(strings.ToLower(text), ".")
	labels := strings.Split(name, ".")
	switch {
	case isAddress(text):
		return "", errors.New("is an IP address: name the host, since code reaches hosts by name only")
	case len(name) > maxName:
		return "", fmt.Errorf("is longer than %d characters", maxName)
	case !isASCII(text): // text, since some other letters have ASCII ones as their lower case
		return "", errors.New("is not ASCII: write it as punycode, such as xn--bcher-kva.example for bücher.example")
	case strings.Contains(name, "*"):
		return "", errors.New("has a * that is not its first part: write it as in *.example.org")
	case len(labels) < 2 && !below:
		return "", errors.New("is a single word: write the full name, such as api.example.com")
	}
	for _, label := range labels {
		ok := label != "" && len(label) <= maxLabel && label[0] != '-' && label[len(label)-1] != '-' &&
			!strings.ContainsFunc(label, func(c rune) bool {
				return !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_')
			})
		if !ok {
			return "", errors.New("is not a host's name: write it as in api.example.com")
		}
	}
	return name, nil
}

func isASCII(text string) bool {
	return !strings.ContainsFunc(text, func(c rune) bool { return c >= 0x80 })
}

// isAddress reports whether text is an IP address in any spelling that a resolver or a browser
// accepts: dotted, short, octal, hexadecimal, decimal, IPv6, with brackets.
func isAddress(text string) bool {
	text = strings.ToLower(text)
	if _, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil || strings.ContainsAny(text, "[]") {
		return true
	}
	text = strings.TrimSuffix(text, ".")
	last := text[strings.LastIndexByte(text, '.')+1:]
	digits, set := last, "0123456789"
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		digits, set = hex, "0123456789abcdef"
	}
	return last != "" && strings.Trim(digits, set) == ""
}

// parseTarget returns where a request wants to go. The port is 0 if it has none.
func parseTarget(host string) (target, error) {
	to := target{name: host}
	if name, port, err := net.SplitHostPort(host); err == nil {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return target{}, errors.New("has no valid port")
		}
		to = target{name, uint16(n)}
	}
	var err error
	to.name, err = parseName(to.name, false)
	return to, err
}

// address matches what hosts and addresses consist of.
var address = regexp.MustCompile(`^[A-Za-z0-9._:%\[\]-]+$`)

// shown returns a host that code has chosen, for results and messages: only if it may be one, since
// models read them as the server's own words.
func shown(host string) string {
	if !address.MatchString(host) {
		return "an invalid name"
	}
	return untrusted.Clip(host, 80)
}

// quote shows untrusted text in a message.
func quote(text string) string { return strconv.QuoteToASCII(untrusted.Clip(text, 80)) }
