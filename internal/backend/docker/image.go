package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
)

// Labels of images. The first two are contract 1's.
const (
	labelRunner      = "sandbox.runner"
	labelLanguage    = "sandbox.language"
	labelLibraries   = "sandbox.libraries"
	labelProtocol    = "sandbox.protocol"
	labelInterpreter = "sandbox.interpreter"

	protocolAgent = "agent"
)

// image is what a start must know about an image.
type image struct {
	ID      string
	agent   bool
	goarch  string
	volumes []string // declared by the image
	labels  map[string]string
	tags    []string
	digests []string // name@sha256:…, from registries
	created time.Time
}

// Runners implements runner.Catalogue: the runners are labelled images on the engine.
func (b *Backend) Runners(ctx context.Context) (set runner.Set, notes []string, problems []runner.Problem, err error) {
	hasOwn := false
	found, err := b.labelled(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	if found, problems, err = b.narrow(ctx, found); err != nil {
		return nil, nil, nil, err
	}
	var images []runner.Image
	for _, img := range found {
		described := img.describe(img.labels[labelLanguage], false)
		described.Listed = len(b.cfg.Images) > 0
		hasOwn = hasOwn || img.agent && described.Bundled()
		images = append(images, described)
	}
	if b.cfg.Image != "" {
		img, err := b.inspect(ctx, b.cfg.Image)
		switch {
		case cerrdefs.IsNotFound(err):
			problems = append(problems, runner.Problem{
				Runner: "python", Problem: "the image of SANDBOX_IMAGE, " + b.cfg.Image + ", is not on the engine",
				Fix: "make images, or docker pull " + b.cfg.Image,
			})
		case err != nil:
			return nil, nil, nil, err
		default:
			found[img.ID] = img
			chosen := img.describe("python", true)
			chosen.Tags = []string{b.cfg.Image}
			images = append(images, chosen)
		}
	}
	b.mu.Lock()
	b.images, b.hasOwn = found, hasOwn
	b.mu.Unlock()
	set, notes, more := runner.FromImages(images)
	return set, notes, append(problems, more...), nil
}

// narrow keeps the images that Config.Images lists, and reports entries that match none.
func (b *Backend) narrow(ctx context.Context, found map[string]image) (map[string]image, []runner.Problem, error) {
	if len(b.cfg.Images) == 0 {
		return found, nil, nil
	}
	kept := map[string]image{}
	var problems []runner.Problem
	for _, entry := range b.cfg.Images {
		ref, err := parseImage(entry)
		if err != nil {
			return nil, nil, fmt.Errorf("SANDBOX_IMAGES: %q: %w", entry, err)
		}
		matched := false
		for id, img := range found {
			if ref.matches(img) {
				kept[id], matched = img, true
			}
		}
		if matched {
			continue
		}
		p := runner.Problem{
			Runner: "images", Problem: "SANDBOX_IMAGES has " + entry + ", which is not on the engine",
			Fix: "make images, or docker pull " + entry,
		}
		switch _, err := b.inspect(ctx, entry); {
		case err == nil:
			p.Problem = "SANDBOX_IMAGES has " + entry + ", which is not labelled as a runner"
			p.Fix = "build it with the labels sandbox.runner=true and sandbox.language"
		case !cerrdefs.IsNotFound(err):
			return nil, nil, err
		}
		problems = append(problems, p)
	}
	return kept, problems, nil
}

// HasOwn reports whether the last Runners found an image of this project: one with its name and the
// agent's label.
func (b *Backend) HasOwn() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hasOwn
}

func (i image) describe(language string, chosen bool) runner.Image {
	out := runner.Image{
		ID: i.ID, Tags: i.tags, Language: language, Agent: i.agent, Version: i.labels[labelInterpreter],
		Created: i.created, Chosen: chosen,
	}
	if l := i.labels[labelLibraries]; l != "" {
		out.Libraries = strings.Split(l, ",")
	}
	return out
}

// labelled returns the images with contract 1's label, by id.
func (b *Backend) labelled(ctx context.Context) (map[string]image, error) {
	lctx, cancel := timeout(ctx, callTimeout)
	defer cancel()
	list, err := b.client.ImageList(lctx, client.ImageListOptions{Filters: make(client.Filters).Add("label", labelRunner+"=true")})
	if err != nil {
		return nil, b.explain(lctx, "list images", err)
	}
	found := map[string]image{}
	for _, summary := range list.Items {
		img, err := b.inspect(ctx, summary.ID)
		if cerrdefs.IsNotFound(err) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if len(img.tags)+len(img.digests) > 0 || len(b.cfg.Images) > 0 { // otherwise an earlier build left it
			found[img.ID] = img
		}
	}
	return found, nil
}

func (b *Backend) inspect(ctx context.Context, ref string) (image, error) {
	ctx, cancel := timeout(ctx, callTimeout)
	defer cancel()
	res, err := b.client.ImageInspect(ctx, ref)
	if cerrdefs.IsNotFound(err) {
		return image{}, err
	}
	if err != nil {
		return image{}, b.explain(ctx, "inspect the image "+ref, err)
	}
	img := image{ID: res.ID, goarch: goarch(res.Architecture)}
	img.created, _ = time.Parse(time.RFC3339Nano, res.Created) // if invalid, it counts as the oldest
	for _, tag := range res.RepoTags {
		if tag != "<none>:<none>" {
			img.tags = append(img.tags, shortName(tag))
		}
	}
	for _, d := range res.RepoDigests {
		if !strings.HasPrefix(d, "<none>") {
			img.digests = append(img.digests, shortName(d))
		}
	}
	if res.Config != nil {
		img.labels = res.Config.Labels
		img.volumes = slices.Sorted(maps.Keys(res.Config.Volumes))
	}
	img.agent = img.labels[labelProtocol] == protocolAgent
	return img, nil
}

// image returns a known image. It asks the engine only about one that Runners has not seen.
func (b *Backend) image(ctx context.Context, id string) (image, error) {
	b.mu.Lock()
	img, ok := b.images[id]
	b.mu.Unlock()
	if ok {
		return img, nil
	}
	if id == "" {
		return image{}, &sandbox.Error{
			Op: "choose an image", Err: errors.New("this runner has none"), Fix: "build the images: make images",
		}
	}
	img, err := b.inspect(ctx, id)
	if cerrdefs.IsNotFound(err) {
		return image{}, &sandbox.Error{
			Op: "start a container", Err: fmt.Errorf("the image %s no longer exists", id),
			Fix: "build it again: make images; the server sees it by itself",
		}
	}
	if err != nil {
		return image{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.images[id] = img
	return img, nil
}

// settle is how long images must not change before they are listed: a build causes many events.
const settle = 250 * time.Millisecond

// Watch implements runner.Catalogue. It also calls changed when an engine is available again.
func (b *Backend) Watch(ctx context.Context, changed func()) {
	wait := 500 * time.Millisecond
	for {
		began := time.Now()
		b.watch(ctx, changed)
		if time.Since(began) > time.Minute {
			wait = 500 * time.Millisecond
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, 10*time.Second)
	}
}

// watch follows the engine's events until the stream ends.
func (b *Backend) watch(ctx context.Context, changed func()) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := b.client.Events(ctx, client.EventsListOptions{Filters: make(client.Filters).Add("type", "image")})
	// The first answer counts as an event: images may have changed before the stream began.
	var quiet <-chan time.Time
	if _, err := b.client.Ping(ctx, client.PingOptions{}); err == nil {
		quiet = time.After(settle)
	}
	for {
		select {
		case <-events.Messages:
			quiet = time.After(settle)
		case <-quiet:
			quiet = nil
			changed()
		case <-events.Err:
			return
		case <-ctx.Done():
			return
		}
	}
}
