package httpapi

// descriptors is how many handles this process may use; Windows has no limit that matters.
func descriptors() uint64 { return 2 * mostConnections }
