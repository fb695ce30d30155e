//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// download measures a large file of a workspace through its signed link, beside cat into a loopback
// connection.
func (b *bench) download(ctx context.Context) (*section, error) {
	size, title := int64(1e9), "Download of a 1 GB file"
	if b.quick {
		size, title = 2e8, "Download of a 200 MB file"
	}
	own, err := b.own(ctx)
	if err != nil {
		return nil, err
	}
	f, err := b.largeFile(ctx, own.server, size)
	if err != nil {
		return nil, err
	}
	taken, err := measure(ctx, b.budget, f.contenders(b.scaled(12)))
	if err != nil {
		return nil, err
	}
	s := &section{Title: title, Header: []string{"over loopback", "MB/s", "p50", "p99", "n", "time to cat's"}}
	for k, t := range taken {
		row := []string{t.name, fmt.Sprintf("%.0f", float64(size)/1e6/t.p50().Seconds()), ms(t.p50()), ms(t.p99()), fmt.Sprint(len(t.times))}
		if k > 0 {
			row = append(row, times(float64(t.p50())/float64(taken[0].p50())))
		}
		s.row(row...)
	}
	s.set("download to cat", float64(taken[1].p50())/float64(taken[0].p50()))
	return s, own.server.closeSession(ctx, largeSession)
}

// largeFile is a file in a workspace, and its link.
type largeFile struct {
	server     *server
	size       int64
	path, link string
}

const largeSession = "download"

func (b *bench) largeFile(ctx context.Context, s *server, size int64) (*largeFile, error) {
	const name = "large.bin"
	answer, err := s.run(ctx, largeSession, "shell", fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x >%s", size, name))
	if err != nil {
		return nil, err
	}
	link, err := linkIn(answer, name)
	if err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(s.root, "*", "files", name))
	if err != nil {
		return nil, err
	}
	if len(paths) != 1 {
		return nil, fmt.Errorf("%d files %s in workspaces, not one", len(paths), name)
	}
	return &largeFile{s, size, paths[0], link}, nil
}

const (
	byCat  = "cat into a connection"
	byLink = "ours, by its signed link"
	byCurl = "ours, with curl"
)

// contenders returns the ways to read the file over loopback, cat first.
func (f *largeFile) contenders(n int) []contender {
	buf := make([]byte, 256<<10)
	discard := func(r io.Reader) ([]byte, error) {
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, buf)
		return fmt.Append(nil, n), err
	}
	want := fmt.Sprint(f.size)
	list := []contender{
		{name: byCat, n: n, want: want, do: func(ctx context.Context) ([]byte, error) { return catOver(ctx, f.path, discard) }},
		{name: byLink, n: n, want: want, do: func(ctx context.Context) ([]byte, error) { return get(ctx, f.server.client, f.link, discard) }},
	}
	if curl, err := exec.LookPath("curl"); err == nil {
		list = append(list, contender{name: byCurl, n: n, want: want, do: command("", nil, curl, "-sSf", "-o", "/dev/null", "-w", "%{size_download}", f.link)})
	}
	return list
}

// linkIn finds the link of a file in the answer of run_code.
func linkIn(answer []byte, name string) (string, error) {
	var reply struct {
		Result struct{ Content []struct{ Text string } }
	}
	if err := json.Unmarshal(answer, &reply); err != nil {
		return "", err
	}
	var result struct {
		Files []struct{ Name, URL string }
	}
	if len(reply.Result.Content) != 1 {
		return "", fmt.Errorf("no result in %s", answer)
	}
	if err := json.Unmarshal([]byte(reply.Result.Content[0].Text), &result); err != nil {
		return "", err
	}
	for _, f := range result.Files {
		if f.Name == name {
			return f.URL, nil
		}
	}
	return "", fmt.Errorf("no link to %s in %s", name, answer)
}

func get(ctx context.Context, client *http.Client, link string, read func(io.Reader) ([]byte, error)) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, link, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	return read(resp.Body)
}

// catOver lets cat write a file into a connection and reads the other end.
func catOver(ctx context.Context, path string, read func(io.Reader) ([]byte, error)) ([]byte, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	_ = client.SetDeadline(time.Now().Add(time.Minute))
	server, err := l.Accept()
	if err != nil {
		return nil, err
	}
	socket, err := server.(*net.TCPConn).File() // cat writes to it itself, with nothing in between
	_ = server.Close()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "cat", path)
	cmd.Stdout, cmd.Stderr = socket, os.Stderr
	err = cmd.Start()
	_ = socket.Close()
	if err != nil {
		return nil, err
	}
	out, err := read(client)
	return out, errors.Join(err, cmd.Wait())
}
