package executor

import (
	"regexp"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/untrusted"
)

// What pip and npm print holds text that an index or a package's author wrote. An error in the
// server's own words repeats only lines of known forms, whose parts are names and versions.

const maxConflicts = 3

// conflictLine matches pip's sentences about versions that do not fit together: up to the marker of
// the requirement, which an index can fill with any text, and what follows it.
var conflictLine = regexp.MustCompile(`(?m)^([\w.-]{1,128} [\w.+!-]{1,64} requires [\w.-]{1,128}(?:\[[\w.,-]{1,64}\])?(?: ?\(?(?:[<>=!~]=?=?[\w.*+!-]{1,64},?){1,8}\)?)?)` +
	`(?: ?;.*)?(, (?:but you have [\w.-]{1,128} [\w.+!-]{1,64} which is incompatible|which is not installed)\.)$`)

// conflictsIn returns the first of pip's sentences about versions that do not fit together, without
// markers.
func conflictsIn(output string) (list []string) {
	for _, m := range conflictLine.FindAllStringSubmatch(output, maxConflicts) {
		list = append(list, m[1]+m[2])
	}
	return list
}

const maxUnmet = 8

// unmetLine is what pip and npm print if no version fits.
var unmetLine = regexp.MustCompile(`(?m)^(?:ERROR: No matching distribution found for|npm (?:error|ERR!) notarget No matching version found for) (\S.{0,300}?)\.?$`)

// unmetIn returns the requirements for which pip or npm found no version.
func unmetIn(output string) (list []string) {
	for _, m := range unmetLine.FindAllStringSubmatch(output, maxUnmet) {
		list = append(list, m[1])
	}
	return list
}

// requirementName returns the name in a requirement, without extras, versions and markers.
func requirementName(requirement string) string {
	if end := strings.IndexAny(requirement, " [(=~!<>;"); end >= 0 {
		requirement = requirement[:end]
	}
	if end := strings.LastIndexByte(requirement, '@'); end > 0 { // npm's, and not before a scope
		requirement = requirement[:end]
	}
	return requirement
}

// Parts of lines.
const (
	namePart    = `@?[A-Za-z0-9](?:[\w.@/-]*\w)?`
	versionPart = `v?[0-9](?:[\w.+!*-]*[\w*])?`
	rangePart   = `(?:(?:[<>=!~^]=?=?|\|\|)? ?` + versionPart + `(?: ?, ?| )?)*`
	requirePart = namePart + `(?:\[[\w.,-]+\])?(?:@| ?\(?)` + rangePart + `\)?`
	npmPart     = `npm (?:error|ERR!) `
)

// knownLines are the lines about errors that a message may repeat. What follows their match is cut.
var knownLines = compile(
	`ERROR: Could not find a version that satisfies the requirement `+requirePart+`(?: \(from (?:`+requirePart+`|versions: (?:none|(?:…, )?`+versionPart+`(?:, `+versionPart+`)*))\))*`,
	`ERROR: No matching distribution found for `+requirePart,
	`ERROR: Cannot install `+requirePart+`(?:(?:, | and )`+requirePart+`)*(?: because these package versions have conflicting dependencies\.)?`,
	`The conflict is caused by:`,
	` +The user requested (?:\(constraint\) )?`+requirePart,
	` +`+namePart+` `+versionPart+` depends on `+requirePart,
	`ERROR: Package '`+namePart+`' requires a different Python: `+versionPart+` not in '`+rangePart+`'`,
	`ERROR: Ignored the following versions that require a different python version: (?:`+versionPart+` Requires-Python `+rangePart+`(?:; )?)*`,
	`ERROR: `+namePart+`\.whl is not a supported wheel on this platform\.`,
	`ERROR: (?:Failed building wheel for|Failed to build) '?`+namePart+`'?`,
	`error: (?:subprocess-exited-with-error|metadata-generation-failed)`,
	`(?:ERROR: Could not install packages due to an OSError|OSError): \[Errno [0-9]+\] (?:No space left on device|Disk quota exceeded|Permission denied|File name too long|Is a directory|Not a directory|File exists|No such file or directory)`,
	npmPart+`(?:code E?[A-Z0-9_]+|errno -?[0-9]+|errno E[A-Z0-9_]+)`,
	npmPart+`this environment has no npm`,
	npmPart+`(?:404 +)?'`+requirePart+`' is not in this registry\.`,
	npmPart+`404 Not Found - GET http://[\w.:/@%-]+`,
	npmPart+`notarget No (?:matching version found|versions available) for `+requirePart,
	npmPart+`(?:ENOVERSIONS )?No versions available for `+requirePart,
	npmPart+`notsup (?:Unsupported platform|Not compatible with your version of node/npm|Unsupported engine) for `+requirePart,
	npmPart+`ERESOLVE (?:could not resolve|unable to resolve dependency tree)`,
	npmPart+`(?:While resolving|Found|Conflicting peer dependency): `+requirePart,
	npmPart+`Could not resolve dependency:`,
	npmPart+` *(?:(?:peer|dev|optional|peerOptional) )?`+namePart+`@"`+rangePart+`" from (?:the root project|`+requirePart+`)`,
	npmPart+`EUNSUPPORTEDPROTOCOL`,
	npmPart+`nospc ENOSPC: no space left on device`,
)

func compile(patterns ...string) (list []*regexp.Regexp) {
	for _, p := range patterns {
		known := regexp.MustCompile(`^(?:` + p + `)`)
		known.Longest()
		list = append(list, known)
	}
	return list
}

const maxKnownLines = 8

// knownIn returns the last lines of known forms that an installer has printed.
func knownIn(output string) string {
	var found []string
	for line := range strings.FieldsFuncSeq(output, func(c rune) bool { return c == '\n' || c == '\r' }) {
		for _, known := range knownLines {
			if text := known.FindString(line); text != "" {
				found = append(found, untrusted.Clip(strings.TrimRight(text, " ,("), 400))
				break
			}
		}
	}
	found = slices.Compact(found)
	return strings.Join(found[max(0, len(found)-maxKnownLines):], "\n")
}

// explained returns the end of a message about an installation that has failed: what the installer
// said, and a hint, if any.
func explained(output, hint string) string {
	if known := knownIn(output); known != "" {
		return hint + "\n" + known
	}
	return hint + " To see what the installer prints, install it in a run of shell code."
}

// requiringPart matches who requires what pip found no version of.
var requiringPart = regexp.MustCompile(`ERROR: Could not find a version that satisfies the requirement (` + requirePart + `) \(from (` + requirePart + `)\)`)

// requiredBy says who requires what pip found no version of, if that is another package.
func requiredBy(output string) string {
	m := requiringPart.FindStringSubmatch(output)
	if m == nil {
		return ""
	}
	return " " + m[2] + " requires " + m[1] + "."
}
