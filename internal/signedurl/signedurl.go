// Package signedurl makes and checks the links for downloads and uploads of a session's files.
//
// A link is its own authorisation: its holder may use it. The package knows the formulas and the
// form of the path, but not whether the session or the file exists.
package signedurl

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Errors of Verify and VerifyUpload.
var (
	ErrSignature = errors.New("the link's signature is missing or wrong")
	ErrExpired   = errors.New("the link has expired")
)

// ErrPath is the only error of ParsePath.
var ErrPath = errors.New("not the path of a file: want /files/{id}/{name}")

// Signer makes and checks links. It is safe for concurrent use.
type Signer struct {
	file    []byte // the secret itself: contract 1's formula
	user    []byte // derived from the secret, like upload
	upload  []byte
	ttl     time.Duration
	userTTL time.Duration
	now     func() time.Time
	baseURL string
}

// UserTTL is how long a logged-in user's links work by default.
const UserTTL = 7 * 24 * time.Hour

// New returns a Signer for links below baseURL. The secret must not be empty. With a positive ttl,
// download links expire, and links without an expiry are refused. Without it, that applies to
// users' links, with [UserTTL]. A nil now means [time.Now].
func New(secret []byte, baseURL string, ttl time.Duration, now func() time.Time) *Signer {
	if len(secret) == 0 {
		panic("signedurl: empty secret")
	}
	if now == nil {
		now = time.Now
	}
	// Every text that is signed with the secret itself has a slash. These have none, so no link
	// reveals a derived key.
	s := &Signer{
		file:    secret,
		user:    mac(secret, "user file link"),
		upload:  mac(secret, "upload link"),
		ttl:     ttl,
		now:     now,
		baseURL: strings.TrimRight(baseURL, "/"),
	}
	if s.userTTL = ttl; ttl <= 0 {
		s.userTTL = UserTTL
	}
	return s
}

// FileURL returns the download link of a file. Its signature is hex(HMAC_SHA256(secret, id/name)),
// or, if links expire, that of expires\nid/name, with expires in Unix seconds. An id that starts
// with "~" is a logged-in user's; its links have their own key and always expire.
func (s *Signer) FileURL(id, name string) string {
	q := url.Values{}
	text := id + "/" + name
	if ttl := s.ttlOf(id); ttl > 0 {
		expires := formatTime(s.now().Add(ttl))
		q.Set("expires", expires)
		text = expires + "\n" + text
	}
	q.Set("sig", sign(s.fileKey(id), text))
	return s.link(id, name, q)
}

// Verify checks a download link's query. Its errors are [ErrSignature] and [ErrExpired].
func (s *Signer) Verify(id, name string, q url.Values) error {
	if !validID(id) {
		return ErrSignature
	}
	text := id + "/" + name
	if !q.Has("expires") {
		if s.ttlOf(id) > 0 || !signed(s.fileKey(id), text, q) {
			return ErrSignature
		}
		return nil
	}
	// An expiry counts even if new links have none.
	expires, ok := parseTime(q.Get("expires"))
	if !ok || !signed(s.fileKey(id), formatTime(expires)+"\n"+text, q) {
		return ErrSignature
	}
	return s.checkExpiry(expires)
}

// UploadURL returns a link to which a file can be PUT until it expires. The ticket makes it work
// only once.
func (s *Signer) UploadURL(id, name, ticket string, expires time.Time) string {
	return s.link(id, name, url.Values{
		"upload":  {ticket},
		"expires": {formatTime(expires)},
		"sig":     {sign(s.upload, uploadText(id, name, ticket, expires))},
	})
}

// VerifyUpload checks an upload link's query and returns its ticket. Its errors are [ErrSignature]
// and [ErrExpired].
func (s *Signer) VerifyUpload(id, name string, q url.Values) (ticket string, err error) {
	ticket = q.Get("upload")
	expires, ok := parseTime(q.Get("expires"))
	if !ok || ticket == "" || !signed(s.upload, uploadText(id, name, ticket, expires), q) {
		return "", ErrSignature
	}
	if err := s.checkExpiry(expires); err != nil {
		return "", err
	}
	return ticket, nil
}

// uploadText quotes every part, so that different links have different texts.
func uploadText(id, name, ticket string, expires time.Time) string {
	return fmt.Sprintf("%s %q %q %q", formatTime(expires), ticket, id, name)
}

func (s *Signer) fileKey(id string) []byte {
	if isUser(id) {
		return s.user
	}
	return s.file
}

func (s *Signer) ttlOf(id string) time.Duration {
	if isUser(id) {
		return s.userTTL
	}
	return s.ttl
}

func isUser(id string) bool { return strings.HasPrefix(id, "~") }

func (s *Signer) checkExpiry(expires time.Time) error {
	if s.now().Before(expires) {
		return nil
	}
	return ErrExpired
}

// link escapes each segment separately.
func (s *Signer) link(id, name string, q url.Values) string {
	var b strings.Builder
	b.WriteString(s.baseURL)
	b.WriteString("/files/")
	b.WriteString(url.PathEscape(id))
	for segment := range strings.SplitSeq(name, "/") {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(segment))
	}
	b.WriteByte('?')
	b.WriteString(q.Encode())
	return b.String()
}

// ParsePath parses a request's escaped path ([url.URL.EscapedPath]). It unescapes each part once;
// an escaped slash in the name is a separator. It refuses parts that are empty, "." or "..", and
// NUL.
func ParsePath(escapedPath string) (id, name string, err error) {
	rest, ok := strings.CutPrefix(escapedPath, "/files/")
	if !ok {
		return "", "", ErrPath
	}
	escapedID, escapedName, _ := strings.Cut(rest, "/")
	id, err = url.PathUnescape(escapedID)
	if err != nil || !validID(id) {
		return "", "", ErrPath
	}
	name, err = url.PathUnescape(escapedName)
	if err != nil || !validName(name) {
		return "", "", ErrPath
	}
	return id, name, nil
}

// validID accepts every session id. It also makes the signed text unambiguous.
func validID(id string) bool {
	return id != "" && id != "." && id != ".." && !strings.ContainsRune(id, '/') && !strings.ContainsFunc(id, unicode.IsControl)
}

// validName accepts every name that a program can give a file.
func validName(name string) bool {
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" || segment == "." || segment == ".." || strings.ContainsRune(segment, 0) {
			return false
		}
	}
	return true
}

func sign(key []byte, text string) string { return hex.EncodeToString(mac(key, text)) }

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// signed compares in constant time.
func signed(key []byte, text string, q url.Values) bool {
	return hmac.Equal([]byte(sign(key, text)), []byte(q.Get("sig")))
}

func formatTime(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

func parseTime(s string) (time.Time, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	t := time.Unix(n, 0)
	return t, err == nil && formatTime(t) == s // accept one spelling only
}
