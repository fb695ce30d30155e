package docker

import (
	"errors"
	"regexp"
	"slices"
	"strings"
)

// wanted is an entry of Config.Images: a name with a tag, a digest, or a name with a digest.
type wanted struct{ name, digest string }

var (
	imageName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*(:[0-9]+/[A-Za-z0-9._/-]+)?(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$`)
	imageDigest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	bareHex     = regexp.MustCompile(`^[0-9a-f]{12,64}$`)
)

// ParseImage checks an entry of Config.Images. A digest is matched whole, against an image's id and its registry digests.
func ParseImage(s string) error {
	_, err := parseImage(s)
	return err
}

func parseImage(s string) (w wanted, err error) {
	name, digest, both := strings.Cut(s, "@")
	if !both && strings.HasPrefix(s, "sha256:") {
		name, digest = "", s
	}
	switch {
	case len(s) > 512, digest != "" && !imageDigest.MatchString(digest), both && (name == "" || digest == ""):
		return w, errors.New("a digest is sha256: and 64 hexadecimal digits")
	case digest == "" && bareHex.MatchString(s):
		return w, errors.New("an id is written whole, with sha256: before it")
	case name != "" && !imageName.MatchString(name), name == "" && digest == "":
		return w, errors.New("it is not the name of an image")
	}
	if digest != "" {
		return wanted{repository(name), digest}, nil
	}
	if !strings.Contains(name[strings.LastIndex(name, "/")+1:], ":") {
		name += ":latest"
	}
	return wanted{name: shortName(name)}, nil
}

// shortName is how people call an image that engines call by a longer name.
func shortName(tag string) string {
	return strings.TrimPrefix(strings.TrimPrefix(tag, "localhost/"), "docker.io/library/")
}

// repository is an image's name without its tag.
func repository(name string) string {
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		name = name[:i]
	}
	return shortName(name)
}

// matches reports whether an image is the one that is wanted.
func (w wanted) matches(img image) bool {
	switch {
	case w.digest == "":
		return slices.Contains(img.tags, w.name)
	case w.name == "":
		return img.ID == w.digest || slices.ContainsFunc(img.digests, func(d string) bool { return strings.HasSuffix(d, "@"+w.digest) })
	}
	return slices.Contains(img.digests, w.name+"@"+w.digest)
}
