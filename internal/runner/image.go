package runner

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"mcp-code-sandbox/runners"
)

// Image is a container image that is labelled as a runner.
type Image struct {
	ID       string   // unique, from the engine
	Tags     []string // may be none
	Language string
	// Agent says that the image has what the definitions name, and runs the agent. Any other image
	// reads code from stdin.
	Agent     bool
	Libraries []string
	Version   string // of the interpreter, such as "Python 3.12.7"; may be empty
	Created   time.Time
	// Chosen says that the operator named this image for its language. It wins over all others.
	Chosen bool
	// Listed says that the operator allowed this image by name.
	Listed bool
}

// bundledLanguages are the labels of this project's images.
var bundledLanguages = []string{"python", "typescript"}

// Bundled reports whether the image has a name that images/build uses for its language.
func (i Image) Bundled() bool {
	return slices.Contains(bundledLanguages, i.Language) &&
		(slices.Contains(i.Tags, "runner-"+i.Language+":latest") || slices.Contains(i.Tags, "mcp-sandbox-runner-"+i.Language+":latest"))
}

// trusted reports whether the operator or images/build named the image: anybody can set a label.
func (i Image) trusted() bool { return i.Chosen || i.Listed || i.Bundled() }

// imageLanguages lists the languages that an image with the agent serves in addition to its own.
var imageLanguages = map[string][]string{
	"python":     {"shell"},
	"typescript": {"javascript", "shell"},
	"javascript": {"typescript", "shell"},
}

// imageEnvironments are the environments in an image with the agent, by language.
var imageEnvironments = map[string]struct {
	env string
	found
}{
	"python":     {"python", found{command: inside + "python/bin/python", path: []string{inside + "python/bin"}, installed: true}},
	"typescript": {"node", found{command: inside + "bin/node", path: []string{inside + "bin"}, installed: true}},
	"javascript": {"node", found{command: inside + "bin/node", path: []string{inside + "bin"}, installed: true}},
}

var libraryName = regexp.MustCompile(`^[@A-Za-z0-9][A-Za-z0-9_./@+ -]{0,63}$`)

// maxLibraries bounds how much a label adds to the description of a tool.
const maxLibraries = 64

// FromImages makes runners from images. Of several images for a language, better chooses one. An
// image of that language wins over one that also serves it, unless only the latter is trusted.
// notes report the images that are not used.
func FromImages(images []Image) (set Set, notes []string, problems []Problem) {
	defs, err := definitions(runners.Files, runners.Names())
	if err != nil {
		return nil, nil, []Problem{{"runners", err.Error(), "rebuild: make build"}}
	}
	images = slices.SortedStableFunc(slices.Values(images), better)
	var names []string
	chosen := map[string]Image{}
	for _, img := range images {
		img.Language = canonical(defs, img.Language)
		if !runnerName.MatchString(img.Language) {
			problems = append(problems, Problem{img.Name(),
				fmt.Sprintf("its label sandbox.language %.80q is not a valid name", img.Language), "label it with a name such as python"})
			continue
		}
		if _, ours := imageEnvironments[img.Language]; img.Agent && !ours && img.Language != "shell" {
			problems = append(problems, Problem{img.Name(), fmt.Sprintf("the agent does not support the language %q", img.Language),
				"remove the label sandbox.protocol: then the image reads code from stdin"})
			continue
		}
		if winner, taken := chosen[img.Language]; taken {
			if len(img.Tags) == 0 && len(winner.Tags) > 0 {
				continue // left by an earlier build
			}
			notes = append(notes, lost(img.Language, winner, img))
			continue
		}
		chosen[img.Language] = img
		names = append(names, img.Language)
	}
	slices.Sort(names)                            // python before typescript: the first serves the shell
	for _, trusted := range []bool{true, false} { // a replaced image serves nothing else
		for _, name := range slices.Clone(names) {
			img := chosen[name]
			if !img.Agent || img.Language != name || img.trusted() != trusted {
				continue
			}
			for _, more := range imageLanguages[name] {
				other, taken := chosen[more]
				switch {
				case !taken:
					names = append(names, more)
				case other.trusted() || !trusted:
					continue
				default:
					notes = append(notes, lost(more, img, other))
				}
				chosen[more] = img
			}
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(position(defs, a), position(defs, b)), strings.Compare(a, b))
	})
	for _, name := range names {
		set = append(set, fromImage(defs, name, chosen[name]))
	}
	return set, notes, problems
}

// canonical resolves an alias such as js. Otherwise an untrusted image could take over the alias.
func canonical(defs []Definition, language string) string {
	for _, d := range defs {
		names := append([]string{d.Name}, d.Aliases...)
		if slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, language) }) {
			return d.Name
		}
	}
	return language
}

func lost(language string, winner, img Image) string {
	return fmt.Sprintf("%s is served by %s (%s), not by %s (%s)", language, winner.Name(), date(winner), img.Name(), date(img))
}

// better orders images of one language: the operator's choice first, then a bundled one, then one
// with a tag, then the newest.
func better(a, b Image) int {
	rank := func(yes bool) int {
		if yes {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(rank(a.Chosen), rank(b.Chosen)),
		cmp.Compare(rank(a.Bundled()), rank(b.Bundled())),
		cmp.Compare(rank(len(a.Tags) > 0), rank(len(b.Tags) > 0)),
		b.Created.Compare(a.Created),
		strings.Compare(a.ID, b.ID),
	)
}

func position(defs []Definition, name string) int {
	if i := slices.IndexFunc(defs, func(d Definition) bool { return d.Name == name }); i >= 0 {
		return i
	}
	return len(defs)
}

// fromImage returns the runner of a language in an image.
func fromImage(defs []Definition, name string, img Image) Runner {
	i := position(defs, name)
	r := Runner{Definition: Definition{Name: name, Title: name}}
	if img.Agent { // FromImages has checked that there is a definition
		bash := found{title: "GNU bash", command: "/bin/bash"}
		envs := map[string]found{}
		if env, ok := imageEnvironments[img.Language]; ok {
			envs[env.env] = env.found
		}
		r, _ = parts{envs: envs, bash: bash}.assemble(defs[i])
		r.Version = "GNU bash"
		if name != "shell" {
			r.Version = img.Version
		}
	} else if i < len(defs) {
		r.Title, r.Aliases = defs[i].Title, defs[i].Aliases
	}
	r.Image, r.ImageID, r.Mounts = img.Name(), img.ID, nil
	if name == img.Language || name != "shell" {
		r.Libraries = labelledLibraries(img.Libraries)
	}
	if !img.Agent {
		r.Version = img.Version
	}
	return r
}

func labelledLibraries(names []string) (out []string) {
	for _, name := range names {
		if name = strings.TrimSpace(name); libraryName.MatchString(name) && len(out) < maxLibraries {
			out = append(out, name)
		}
	}
	return out
}

// Name returns contract 1's name if the image has it, otherwise its first tag, otherwise its short
// ID.
func (i Image) Name() string {
	tags := slices.Sorted(slices.Values(i.Tags))
	if slices.Contains(tags, "runner-"+i.Language+":latest") {
		return "runner-" + i.Language
	}
	if len(tags) > 0 {
		return tags[0]
	}
	id := strings.TrimPrefix(i.ID, "sha256:")
	return id[:min(12, len(id))]
}

func date(i Image) string { return i.Created.UTC().Format(time.DateTime) }
