package session

import "mcp-code-sandbox/internal/workspace"

const (
	// diskReserve and filesReserve are what runs and uploads must leave free of the file system. See reserve.
	diskReserve  = 1 << 30
	filesReserve = 100_000
	// minGrowth and minFiles are what somebody must have written, or made, to be the one that fills the disk.
	minGrowth = 1 << 20
	minFiles  = 1000
)

// shortage is what the disk is short of.
type shortage int

const (
	enough shortage = iota
	ofBytes
	ofFiles
)

func shortageOf(d workspace.Disk, reserve workspace.Usage) shortage {
	switch {
	case d.FreeBytes < reserve.Bytes:
		return ofBytes
	case d.FreeFiles < int64(reserve.Files):
		return ofFiles
	}
	return enough
}

// isGrowth reports whether somebody who has grown so much takes part in the shortage.
func (sh shortage) isGrowth(n int64) bool {
	return sh == ofBytes && n >= minGrowth || sh == ofFiles && n >= minFiles
}

// reserve is what the session's runs and uploads must leave free of the disk. The operator may use half of what is left.
func (s *Session) reserve() workspace.Usage {
	d, err := s.ws.Disk()
	if err != nil {
		return workspace.Usage{}
	}
	if s.caller == Local {
		return workspace.Usage{Bytes: min(diskReserve, d.FreeBytes/2), Files: int(min(filesReserve, d.FreeFiles/2))}
	}
	return workspace.Usage{Bytes: min(diskReserve, d.Bytes/16), Files: int(min(filesReserve, d.Files/8))}
}

// DiskIsFull reports whether the file system that holds the session's files has hardly any space left, or room for files.
func (s *Session) DiskIsFull() bool {
	const little, few = 4 << 20, 16 // a write that failed may have left some
	d, err := s.ws.Disk()
	return err == nil && (d.FreeBytes < little || d.Files > 0 && d.FreeFiles < few)
}
