package executor

import "bytes"

// redacted stands where an execution token was.
const redacted = "[execution token]"

// redactor takes secrets out of a stream that comes in pieces. What may be the beginning of one is held back until the next piece, or
// the end, tells.
type redactor struct {
	secrets [][]byte
	held    []byte
	out     func([]byte)
}

// hide adds secrets. It must be called before anything is written that may hold them.
func (r *redactor) hide(secrets []string) {
	for _, s := range secrets {
		if s != "" {
			r.secrets = append(r.secrets, []byte(s))
		}
	}
}

func (r *redactor) write(p []byte) {
	if len(r.secrets) == 0 {
		r.out(p)
		return
	}
	if len(r.held) > 0 {
		p = append(r.held, p...)
		r.held = nil
	}
	for {
		at, length := r.find(p)
		if at < 0 {
			break
		}
		if at > 0 {
			r.out(p[:at])
		}
		r.out([]byte(redacted))
		p = p[at+length:]
	}
	keep := r.beginning(p)
	if len(p) > keep {
		r.out(p[:len(p)-keep])
	}
	r.held = append([]byte(nil), p[len(p)-keep:]...)
}

// flush writes what was held back: nothing more comes.
func (r *redactor) flush() {
	if len(r.held) > 0 {
		r.out(r.held)
		r.held = nil
	}
}

// find returns where the first secret is, and how long it is.
func (r *redactor) find(p []byte) (at, length int) {
	at = -1
	for _, s := range r.secrets {
		if i := bytes.Index(p, s); i >= 0 && (at < 0 || i < at || i == at && len(s) > length) {
			at, length = i, len(s)
		}
	}
	return at, length
}

// beginning is the length of the longest end of p with which a secret begins.
func (r *redactor) beginning(p []byte) int {
	longest := 0
	for _, s := range r.secrets {
		for n := min(len(s)-1, len(p)); n > longest; n-- {
			if p[len(p)-n] == s[0] && bytes.HasPrefix(s, p[len(p)-n:]) {
				longest = n
			}
		}
	}
	return longest
}

// redact takes the secrets out of something whole.
func (r *redactor) redact(p []byte) []byte {
	for _, s := range r.secrets {
		if bytes.Contains(p, s) {
			p = bytes.ReplaceAll(p, s, []byte(redacted))
		}
	}
	return p
}
