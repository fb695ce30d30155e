package proxy

import (
	"maps"
	"net/url"
	"slices"
)

// Bounds of the query keys in an audit record.
const (
	maxQueryKeys = 32
	maxQueryKey  = 64
)

func queryKeys(values url.Values) []string {
	keys := slices.Sorted(maps.Keys(values))
	keys = keys[:min(len(keys), maxQueryKeys)]
	for i, k := range keys {
		keys[i] = clip(k, maxQueryKey)
	}
	return keys
}
