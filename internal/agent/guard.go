package agent

// GuardConfig is what GuardNetwork is told, as JSON.
type GuardConfig struct {
	// Unreachable lists networks (CIDR) to which no packet may go, whatever the default route.
	Unreachable []string `json:"unreachable,omitempty"`
	// Resolvers are name servers that may be asked on port 53 though they lie in such a network.
	Resolvers []string `json:"resolvers,omitempty"`
	// Open lists networks that may be reached though they are the interface's own.
	Open []string `json:"open,omitempty"`
}

// GuardDone is what GuardNetwork prints when all is in place.
const GuardDone = "guarded"

// HostNetwork is what DescribeNetwork prints, as JSON.
type HostNetwork struct {
	Addresses []string `json:"addresses"`
	Resolvers []string `json:"resolvers"`
}
