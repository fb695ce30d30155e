package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/door"
	"mcp-code-sandbox/internal/serviceconfig"
)

// auditFile is the audit trail, below the root.
var auditFile = filepath.Join("audit", "proxy.jsonl")

// openDoor opens what code can reach outside its sandbox, as the configuration file says.
func (a *app) openDoor(ctx context.Context, baseURL string) error {
	file := &serviceconfig.File{}
	if a.settings.Config != "" {
		var err error
		if file, err = loadServices(a.settings.Config, a.env); err != nil {
			return fmt.Errorf("SANDBOX_CONFIG: %w", err)
		}
	}
	trail, err := audit.Open(filepath.Join(a.settings.Root, auditFile))
	if err != nil {
		return err
	}
	a.closeLast(trail)
	if a.services, err = a.newServices(ctx, file, trail, baseURL); err != nil {
		return err
	}
	if a.egress, err = a.newEgress(file.Network, trail); err != nil {
		return err
	}
	rooms := map[string]door.Room{}
	if a.services.any() {
		rooms["proxy"] = a.services.proxy
	}
	if a.packages, err = a.openPackages(ctx, file, trail); err != nil {
		return err
	}
	if a.packages != nil {
		rooms["packages"] = a.packages
	}
	cfg := door.Config{Rooms: rooms, Logger: a.log}
	if a.egress != nil {
		cfg.Egress = a.egress
	}
	if len(rooms) > 0 || cfg.Egress != nil {
		a.door = door.New(cfg)
	}
	return nil
}

// dial returns the handler of a sandbox's connections, or nil if the door leads nowhere.
func (a *app) dial() func(ctx context.Context, sandboxID, host string, conn net.Conn) {
	if a.door == nil {
		return nil
	}
	return a.door.Serve
}
