//go:build !linux && !darwin

package workspace

import "errors"

// Free is not known here.
func (w *Workspace) Free() (int64, error) { return 0, errors.ErrUnsupported }

// DiskSize is not known here.
func (w *Workspace) DiskSize() (int64, error) { return 0, errors.ErrUnsupported }
