//go:build !linux && !darwin

package workspace

import "errors"

// Disk is not known here.
func (w *Workspace) Disk() (Disk, error) { return Disk{}, errors.ErrUnsupported }
