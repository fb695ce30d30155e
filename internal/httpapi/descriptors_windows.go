package httpapi

// descriptors returns enough for mostConnections: Windows has no limit that matters.
func descriptors() uint64 { return 2 * mostConnections }
