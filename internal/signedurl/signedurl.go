// Package signedurl makes and checks the links under which files of a session are downloaded and uploaded.
//
// A link is its own authorisation: whoever holds it may use it. The package knows the formulas and the
// shape of the path; whether there is such a session or file is for others to say.
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
	"sync/atomic"
	"time"
	"unicode"
)

// Errors of Verify and VerifyUpload.
var (
	ErrSignature = errors.New("the link's signature is missing or wrong")
	ErrExpired   = errors.New("the link has expired")
)

// ErrPath is ParsePath's only error.
var ErrPath = errors.New("not the path of a file: want /files/{id}/{name}")

// Signer makes and checks links. It is safe for concurrent use.
type Signer struct {
	file    []byte // the secret itself: contract 1's formula
	user    []byte // derived from it, see derive
	upload  []byte
	ttl     time.Duration
	userTTL time.Duration
	now     func() time.Time
	baseURL atomic.Pointer[string]
}

// UserTTL is how long a logged-in user's links work where nothing else is set.
const UserTTL = 7 * 24 * time.Hour

// New returns a Signer for links below baseURL. The secret must not be empty. With a positive ttl, download links
// expire and links without an expiry are refused; without one, this holds for users' links, after [UserTTL]. A nil now
// means [time.Now].
func New(secret []byte, baseURL string, ttl time.Duration, now func() time.Time) *Signer {
	if len(secret) == 0 {
		panic("signedurl: empty secret")
	}
	if now == nil {
		now = time.Now
	}
	s := &Signer{
		file:   secret,
		user:   derive(secret, "user file link"),
		upload: derive(secret, "upload link"),
		ttl:    ttl,
		now:    now,
	}
	if s.userTTL = ttl; ttl <= 0 {
		s.userTTL = UserTTL
	}
	s.SetBaseURL(baseURL)
	return s
}

// derive makes a key of its own for a purpose. A purpose must have no slash in it: every text that is signed with
// the secret itself has one, so no link that hostile code can ask for reveals a derived key.
func derive(secret []byte, purpose string) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(purpose))
	return mac.Sum(nil)
}

// SetBaseURL changes where links point to, for instance once a listener has its port. Links made before stay valid.
func (s *Signer) SetBaseURL(baseURL string) {
	baseURL = strings.TrimRight(baseURL, "/")
	s.baseURL.Store(&baseURL)
}

// FileURL returns the download link of a file. Its signature is
//
//	hex(HMAC_SHA256(secret, id + "/" + name))
//
// and, when links expire, that of expires + "\n" + id + "/" + name, expires being in seconds since 1970. An id that starts
// with "~" names one generation of a logged-in user's session; its links are signed with a key of their own, and always expire.
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
	// A link that carries an expiry is held to it even when new links carry none.
	expires, ok := parseTime(q.Get("expires"))
	if !ok || !signed(s.fileKey(id), formatTime(expires)+"\n"+text, q) {
		return ErrSignature
	}
	return s.checkExpiry(expires)
}

// UploadURL returns a link to which a file can be PUT until it expires. That it works only once is the ticket's business.
func (s *Signer) UploadURL(id, name, ticket string, expires time.Time) string {
	return s.link(id, name, url.Values{
		"upload":  {ticket},
		"expires": {formatTime(expires)},
		"sig":     {sign(s.upload, uploadText(id, name, ticket, expires))},
	})
}

// VerifyUpload checks an upload link's query and returns its ticket. Its errors are [ErrSignature] and [ErrExpired].
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

// uploadText quotes every part, so that no two links have the same text.
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

// link escapes each segment by itself.
func (s *Signer) link(id, name string, q url.Values) string {
	var b strings.Builder
	b.WriteString(*s.baseURL.Load())
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

// ParsePath takes a request's escaped path ([url.URL.EscapedPath]) apart. Each segment is unescaped exactly once; an escaped
// slash in the name separates like a plain one. It refuses whatever cannot be the id of a session and the
// relative name of a file in it: with parts that are empty, "." or "..", or with a NUL.
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

// validID holds for every id of a session. It also keeps a signed text from being read in two ways.
func validID(id string) bool {
	return id != "" && id != "." && id != ".." && !strings.ContainsRune(id, '/') && !strings.ContainsFunc(id, unicode.IsControl)
}

// validName allows whatever a program may have called its file.
func validName(name string) bool {
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" || segment == "." || segment == ".." || strings.ContainsRune(segment, 0) {
			return false
		}
	}
	return true
}

func sign(key []byte, text string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

// signed compares in constant time.
func signed(key []byte, text string, q url.Values) bool {
	return hmac.Equal([]byte(sign(key, text)), []byte(q.Get("sig")))
}

func formatTime(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

func parseTime(s string) (time.Time, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	t := time.Unix(n, 0)
	return t, err == nil && formatTime(t) == s // one spelling only
}
