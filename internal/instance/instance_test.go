package instance_test

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"mcp-code-sandbox/internal/instance"
)

// childEnv makes the test binary an instance: it acquires, prints its id, and lives until its stdin
// ends.
const childEnv = "INSTANCE_TEST_ROOT"

func TestMain(m *testing.M) {
	if root := os.Getenv(childEnv); root != "" {
		i, err := instance.Acquire(root)
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println(i.ID())
		bufio.NewReader(os.Stdin).ReadString('\n')
		os.Exit(0) // without Close: what a crash leaves
	}
	os.Exit(m.Run())
}

type child struct {
	id   string
	kill func()
}

func start(t *testing.T, root string) child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+root)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := sync.OnceFunc(func() {
		cmd.Process.Kill()
		cmd.Wait()
		in.Close()
	})
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return child{strings.TrimSpace(line), kill}
}

func ids(list []*instance.Instance) []string {
	var s []string
	for _, i := range list {
		s = append(s, i.ID())
	}
	return s
}

func TestDeadIsOnlyTheDead(t *testing.T) {
	root := t.TempDir()
	own, err := instance.Acquire(root)
	if err != nil {
		t.Fatal(err)
	}
	alive, killed := start(t, root), start(t, root)

	dead, err := instance.Dead(root)
	if err != nil || len(dead) != 0 {
		t.Fatalf("all alive, yet Dead = %v, %v", ids(dead), err)
	}

	killed.kill()
	dead, err = instance.Dead(root)
	if err != nil || !slices.Equal(ids(dead), []string{killed.id}) {
		t.Fatalf("Dead = %v, %v; want just %s (alive: %s, %s)", ids(dead), err, killed.id, own.ID(), alive.id)
	}
	// While it is being reaped, nobody else finds it.
	if again, err := instance.Dead(root); err != nil || len(again) != 0 {
		t.Fatalf("a taken-over instance was found again: %v, %v", ids(again), err)
	}
	// If reaping fails, the next round tries again.
	dead[0].Abandon()
	dead, err = instance.Dead(root)
	if err != nil || len(dead) != 1 {
		t.Fatalf("after Abandon: %v, %v", ids(dead), err)
	}
	if err := dead[0].Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead[0].Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("after Close the directory is there: %v", err)
	}
	if err := own.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(own.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("own directory is there after Close: %v", err)
	}
}

// Instances start and reap at once: none may lose its directory.
func TestStartersAndReapersRace(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(root+"/instances/0123456789ab", 0o700); err != nil { // died between mkdir and lock
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				i, err := instance.Acquire(root)
				if err != nil {
					t.Error(err)
					return
				}
				dead, err := instance.Dead(root)
				if err != nil {
					t.Error(err)
				}
				for _, d := range dead {
					if err := d.Close(); err != nil {
						t.Error(err)
					}
				}
				if _, err := os.Stat(i.Dir()); err != nil {
					t.Errorf("a living instance lost its directory: %v", err)
				}
				if err := i.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	entries, err := os.ReadDir(root + "/instances")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}
