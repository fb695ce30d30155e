package docker

import (
	"errors"
	"regexp"
	"slices"
	"strings"
)

// reference is an entry of Config.Images: a name with a tag, a digest, or a name with a digest.
type reference struct{ name, digest string }

var (
	imageName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*(:[0-9]+/[A-Za-z0-9._/-]+)?(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$`)
	imageDigest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	bareHex     = regexp.MustCompile(`^[0-9a-f]{12,64}$`)
)

// ParseImage checks an entry of Config.Images. A digest must match an image's id or one of its
// registry digests.
func ParseImage(s string) error {
	_, err := parseImage(s)
	return err
}

func parseImage(s string) (ref reference, err error) {
	name, digest, both := strings.Cut(s, "@")
	if !both && strings.HasPrefix(s, "sha256:") {
		name, digest = "", s
	}
	switch {
	case len(s) > 512, digest != "" && !imageDigest.MatchString(digest), both && (name == "" || digest == ""):
		return ref, errors.New("a digest must be sha256: followed by 64 hexadecimal digits")
	case digest == "" && bareHex.MatchString(s):
		return ref, errors.New("an id must be sha256: followed by 64 hexadecimal digits")
	case name != "" && !imageName.MatchString(name), name == "" && digest == "":
		return ref, errors.New("it is not a valid image name")
	}
	if digest != "" {
		return reference{repository(name), digest}, nil
	}
	if !strings.Contains(name[strings.LastIndex(name, "/")+1:], ":") {
		name += ":latest"
	}
	return reference{name: shortName(name)}, nil
}

// shortName strips the prefixes that engines add to the name of an image.
func shortName(tag string) string {
	return strings.TrimPrefix(strings.TrimPrefix(tag, "localhost/"), "docker.io/library/")
}

// repository strips the tag of a name.
func repository(name string) string {
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		name = name[:i]
	}
	return shortName(name)
}

// matches reports whether the entry names the image.
func (ref reference) matches(img image) bool {
	switch {
	case ref.digest == "":
		return slices.Contains(img.tags, ref.name)
	case ref.name == "":
		return img.ID == ref.digest || slices.ContainsFunc(img.digests, func(d string) bool { return strings.HasSuffix(d, "@"+ref.digest) })
	}
	return slices.Contains(img.digests, ref.name+"@"+ref.digest)
}
