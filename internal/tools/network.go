package tools

import (
	"encoding/json"
	"fmt"
	"strings"

	"mcp-code-sandbox/internal/executor"
)

// networkArgument is a boolean. A list of hosts is accepted as well: models write it there.
type networkArgument struct {
	on    bool
	hosts hostsArgument
}

func (n *networkArgument) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, &n.on) == nil {
		return nil
	}
	if data[0] != '[' || n.hosts.UnmarshalJSON(data) != nil || len(n.hosts) == 0 {
		return argumentError("network must be a boolean")
	}
	return nil
}

// apply adds the argument to a request.
func (n networkArgument) apply(req *executor.Request) { req.Network, req.Hosts = n.on, n.hosts }

// Bounds of arguments that are lists of short texts, before they are decoded.
const maxTextsJSON = 64 << 10

// hostsArgument lists hosts.
type hostsArgument []string

// UnmarshalJSON also accepts a single host.
func (h *hostsArgument) UnmarshalJSON(data []byte) error {
	return unmarshalTexts(data, (*[]string)(h), "hosts must be an array of host names, such as api.example.com")
}

// packagesArgument lists requirements.
type packagesArgument []string

// UnmarshalJSON also accepts a single requirement.
func (p *packagesArgument) UnmarshalJSON(data []byte) error {
	return unmarshalTexts(data, (*[]string)(p), "packages must be an array of requirements, such as shapely or shapely==2.*")
}

func unmarshalTexts(data []byte, texts *[]string, problem string) error {
	if len(data) > maxTextsJSON {
		return argumentError(problem)
	}
	var one string
	if json.Unmarshal(data, &one) == nil && one != "" {
		*texts = []string{one}
		return nil
	}
	if json.Unmarshal(data, texts) != nil {
		return argumentError(problem)
	}
	return nil
}

// blockedFact says which hosts the code tried to reach, for the line of facts. It returns "" if
// there are none.
func blockedFact(blocked []executor.Blocked) string {
	var texts []string
	for _, b := range blocked[:min(len(blocked), maxFactFiles)] {
		texts = append(texts, factName(b.Host)+" (rule: "+factName(b.Rule)+")")
	}
	if len(texts) == 0 {
		return ""
	}
	if more := len(blocked) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return "blocked: " + strings.Join(texts, ", ")
}
