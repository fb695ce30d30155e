// Package netguard closes a network namespace toward networks that code must not reach. Unreachable
// routes make a forbidden connection fail at once. A packet filter on each interface also stops
// sockets that bypass routes. The agent's binary runs it inside the namespace that it closes.
//
// The package does not decide which networks are closed: package closednet does.
package netguard

// Config tells Guard what to close. It travels as JSON on the command line.
type Config struct {
	// Unreachable lists networks (CIDR) that no packet may reach, regardless of the default route.
	Unreachable []string `json:"unreachable,omitempty"`
	// Resolvers lists name servers that stay reachable on port 53 even in such a network.
	Resolvers []string `json:"resolvers,omitempty"`
	// Open lists networks that stay reachable even if an interface is in them.
	Open []string `json:"open,omitempty"`
}

// Done is what Guard prints when everything is in place.
const Done = "guarded"

// HostNetwork is what Describe prints, as JSON.
type HostNetwork struct {
	Addresses []string `json:"addresses"`
	Resolvers []string `json:"resolvers"`
}
