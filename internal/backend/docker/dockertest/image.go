// Package dockertest has helpers for tests on a real engine.
package dockertest

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"testing"

	"github.com/moby/moby/client"
)

// Build builds an image from a Dockerfile and returns its id. The image is removed with the test.
func Build(t *testing.T, c *client.Client, tag, dockerfile string) (id string) {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Name: "Dockerfile", Mode: 0o644, Size: int64(len(dockerfile))}); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(w, dockerfile)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	res, err := c.ImageBuild(t.Context(), &buf, client.ImageBuildOptions{Tags: []string{tag}, Remove: true, ForceRemove: true})
	if err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = c.ImageRemove(context.Background(), tag, client.ImageRemoveOptions{Force: true, PruneChildren: true})
	})
	img, err := c.ImageInspect(t.Context(), tag)
	if err != nil {
		t.Fatalf("the image was not built: %v\n%s", err, said)
	}
	return img.ID
}
