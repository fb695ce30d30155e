package oauth

import (
	"errors"
	"fmt"
	"strings"
)

// allowList lists which users of the upstream provider may log in.
type allowList struct {
	everybody       bool
	domains, emails map[string]bool
}

// CheckAllowed returns an error if AllowedDomains and AllowedEmails cannot be used.
func (u Upstream) CheckAllowed() error {
	_, err := newAllowList(u.AllowedDomains, u.AllowedEmails)
	return err
}

// newAllowList refuses an empty list, which must not mean everybody with an account at the
// provider.
func newAllowList(domains, emails []string) (allowList, error) {
	l := allowList{domains: map[string]bool{}, emails: map[string]bool{}}
	for _, d := range domains {
		if d == "*" {
			l.everybody = true
			continue
		}
		if d = lower(strings.TrimPrefix(d, "@")); !strings.Contains(d, ".") && d != "localhost" || strings.ContainsAny(d, "@*/ ") {
			return l, fmt.Errorf(`auth.allowedDomains: %q is not a domain such as example.com; use "*" for everybody with an account, and allowedEmails for addresses`, d)
		}
		l.domains[d] = true
	}
	for _, e := range emails {
		if _, ok := domainOf(lower(e)); !ok {
			return l, fmt.Errorf("auth.allowedEmails: %q is not an e-mail address; domains go to allowedDomains", e)
		}
		l.emails[lower(e)] = true
	}
	if !l.everybody && len(l.domains) == 0 && len(l.emails) == 0 {
		return l, errors.New(`set auth.allowedDomains or auth.allowedEmails to list who may log in ("allowedDomains": ["*"] is everybody with an account)`)
	}
	return l, nil
}

// email reports whether a user with the e-mail address may log in. The provider must have verified
// it.
func (l allowList) email(address string) bool {
	if l.everybody {
		return true
	}
	address = lower(address)
	domain, ok := domainOf(address)
	return ok && (l.emails[address] || l.domains[domain])
}

func domainOf(address string) (string, bool) {
	local, domain, ok := strings.Cut(address, "@")
	return domain, ok && local != "" && domain != "" && !strings.ContainsAny(domain, "@ ")
}

// lower changes ASCII letters only: Unicode folds the Kelvin sign to k.
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}
