package cgroup

import (
	"context"
	"fmt"
	"math"
	"os"
	"path"
	"time"

	"github.com/godbus/dbus/v5"
)

// scopeTimeout bounds how long systemd may take. It takes milliseconds.
const scopeTimeout = 5 * time.Second

// enterScope asks the user's systemd, on a message bus, to make a scope: a unit of processes that
// systemd did not start. The unit delegates its group to the user. enterScope returns when systemd
// has moved this process into it. The scope ends with its last process, however that ends.
func enterScope(bus, unit string) error {
	ctx, cancel := context.WithTimeout(context.Background(), scopeTimeout)
	defer cancel()
	err := startScope(ctx, bus, unit)
	if ctx.Err() != nil {
		err = fmt.Errorf("no answer within %v", scopeTimeout) // the library says that the connection is closed
	}
	if err != nil {
		return fmt.Errorf("ask systemd for a scope: %w", err)
	}
	for {
		if own, err := ownGroup(""); err != nil || path.Base(own) == unit {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("systemd did not move this process into %s", unit)
		case <-time.After(time.Millisecond):
		}
	}
}

// startScope returns when systemd has queued the start of the scope.
func startScope(ctx context.Context, bus, unit string) error {
	// In a user namespace, this process does not have the uid by which the bus knows it. So it
	// sends none: the bus takes the uid from the socket.
	conn, err := dbus.Connect("unix:path="+dbus.EscapeBusAddressValue(bus), dbus.WithContext(ctx), dbus.WithAuth(dbus.AuthExternal("")))
	if err != nil {
		return err
	}
	defer conn.Close()
	type property struct {
		Name  string
		Value dbus.Variant
	}
	type auxiliary struct {
		Name       string
		Properties []property
	}
	properties := []property{
		{"Description", dbus.MakeVariant("MCP Code Sandbox")},
		{"PIDs", dbus.MakeVariant([]uint32{uint32(os.Getpid())})},
		{"Delegate", dbus.MakeVariant(true)},
		{"Slice", dbus.MakeVariant("app.slice")},
		{"TasksMax", dbus.MakeVariant(uint64(math.MaxUint64))},  // infinite, as in the user's session
		{"CollectMode", dbus.MakeVariant("inactive-or-failed")}, // systemd forgets it in any case
	}
	systemd := conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	return systemd.CallWithContext(ctx, "org.freedesktop.systemd1.Manager.StartTransientUnit", 0,
		unit, "fail", properties, []auxiliary{}).Err
}
