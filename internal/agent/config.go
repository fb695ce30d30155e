package agent

import "mcp-code-sandbox/internal/wire"

// PIDReserve is how many pids the agent and the run-inits of a few runs need. Backends add it to
// the pid limit, so that the code gets all of the configured limit.
const PIDReserve = 64

// Config is the agent's configuration. The backend passes it as JSON in the last argument.
type Config struct {
	// Unreachable lists networks (CIDR) that no packet may reach, regardless of the default route.
	Unreachable []string `json:"unreachable,omitempty"`
	// Forward makes the agent listen on sandbox.ForwardAddr and carry connections to the server.
	Forward bool `json:"forward,omitempty"`
	// Names makes it the sandbox's name server, at sandbox.ResolverAddr. It needs Forward.
	Names bool `json:"names,omitempty"`
	// DataBytes and Processes are rlimits for every process of a run, where there is no cgroup.
	DataBytes uint64 `json:"data_bytes,omitempty"`
	Processes uint64 `json:"processes,omitempty"`
	// NoZygote keeps the agent from starting zygotes: there is too little memory.
	NoZygote bool `json:"no_zygote,omitempty"`
	// Zygotes announces zygotes that come from outside. They speak on ZygoteFD and the descriptors
	// after it.
	Zygotes []Adopted `json:"zygotes,omitempty"`
	// Close is a descriptor that only bubblewrap needed; zero if there is none.
	Close int `json:"close,omitempty"`
	// Expect says that the backend attaches the workspace later, on WorkspaceFD.
	Expect *Expected `json:"expect,omitempty"`
}

// Expected describes a sandbox that has no workspace yet.
type Expected struct {
	TmpBytes int64     `json:"tmp_bytes"`       // the size of /tmp of its first run
	First    *wire.Run `json:"first,omitempty"` // that run's program, if it can start without its code
}

// Adopted is a zygote that the backend provides.
type Adopted struct {
	Name string            `json:"name"`
	Env  map[string]string `json:"env,omitempty"` // the environment that it was started with
	// Reads and PerRun are those of wire.Zygote.
	Reads  []string `json:"reads,omitempty"`
	PerRun []string `json:"per_run,omitempty"`
	// Soon says that it has imported its libraries and is about to arrive: a run may wait for it.
	Soon bool `json:"soon,omitempty"`
	// OnRequest says that it arrives when the agent has written to its descriptor.
	OnRequest bool `json:"on_request,omitempty"`
}
