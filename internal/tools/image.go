package tools

import (
	"bytes"
	"fmt"
	"image"
	_ "image/gif" // a format that models can read
	"image/jpeg"
	"image/png"
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/image/draw"
	_ "golang.org/x/image/webp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/mediatype"
	"mcp-code-sandbox/internal/share"
)

const (
	// maxImageSide is the largest side that models can use. A larger image costs tokens without
	// showing more.
	maxImageSide = 1568
	// maxImageBytes bounds the images of one result together. The Python SDK 2.x refuses events
	// over 1 MiB: this is 853 KiB in base64, which leaves room for the output.
	maxImageBytes = 640 << 10
	// maxImagePixels bounds the memory for decoding a hostile image.
	maxImagePixels = 16 << 20
	maxImages      = 10 // in one result
	// maxScanned bounds the time for decoding a JPEG, each of whose scans may visit every pixel.
	// Programs write ten scans.
	maxScanned = 12 * maxImagePixels
)

// imageScaler makes images fit. Callers share the decoding, of a few images at a time.
type imageScaler struct{ decoding *share.Pool }

func newImageScaler(atOnce int64) imageScaler {
	return imageScaler{share.New(share.Config{Capacity: atOnce})}
}

// images returns the images that a run showed, scaled for a model, and a sentence about those left
// out, if any. An image has the index of its display; that of others is nil. Each image gets an
// equal share of the bytes that the images before it left.
func (s imageScaler) images(c *call, displays []executor.Display) (out []*mcp.ImageContent, missing string) {
	name := func(d executor.Display) string { return "." + strings.TrimPrefix(d.MIME, "image/") }
	var chosen []int
	var hidden []executor.Display
	for i, d := range displays {
		data, _ := d.Content()
		if _, ok := imageType(name(d), data); ok && len(chosen) < maxImages {
			chosen = append(chosen, i)
		} else if strings.HasPrefix(d.MIME, "image/") {
			hidden = append(hidden, d)
		}
	}
	out = make([]*mcp.ImageContent, len(displays))
	remaining, shown := maxImageBytes, 0
	for n, i := range chosen {
		d := displays[i]
		load := func() []byte { data, _ := d.Content(); return data }
		if out[i] = s.content(c, name(d), load, remaining/(len(chosen)-n)); out[i] != nil {
			remaining -= len(out[i].Data)
			shown++
		} else {
			hidden = append(hidden, d)
		}
	}
	return out, missingImages(hidden, shown)
}

// shownImages are the images of a result; see images.
type shownImages struct {
	list    []*mcp.ImageContent
	missing string
}

// imagesOf returns the images of a run, which it makes once for each call.
func (t *toolset) imagesOf(c *call, res executor.Result) *shownImages {
	if c.shown == nil {
		c.shown = &shownImages{}
		c.shown.list, c.shown.missing = t.images.images(c, res.Displays)
	}
	return c.shown
}

// items returns the images that there are as content.
func items(images []*mcp.ImageContent) (out []mcp.Content) {
	for _, c := range images {
		if c != nil {
			out = append(out, c)
		}
	}
	return out
}

// content returns an image of at most limit bytes for a model, or nil if load does not return an
// image that can be shown, or the call ends. While it waits for its turn, it keeps no reference to
// the data, so that the executor can drop it.
func (s imageScaler) content(c *call, name string, load func() []byte, limit int) *mcp.ImageContent {
	data := load()
	switch kind, fits := inspectImage(name, data, limit); {
	case kind == "":
		return nil
	case fits:
		return &mcp.ImageContent{Data: data, MIMEType: kind}
	}
	turn, err := s.decoding.Acquire(c.ctx, c.caller.ID, 1)
	if err != nil {
		return nil
	}
	defer turn.Release()
	full, _, err := image.Decode(bytes.NewReader(load()))
	if err != nil {
		return nil
	}
	return scaled(full, limit)
}

// inspectImage returns the type of an image, "" if it cannot be shown, and whether it needs no
// scaling.
func inspectImage(name string, data []byte, limit int) (kind string, fits bool) {
	kind, ok := imageType(name, data)
	if !ok {
		return "", false
	}
	config, _, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil || config.Width <= 0 || config.Height <= 0 || config.Width > maxImagePixels/config.Height {
		return "", false
	}
	if kind == "image/jpeg" && scans(data) > maxScanned/(config.Width*config.Height) {
		return "", false
	}
	return kind, len(data) <= limit && max(config.Width, config.Height) <= maxImageSide
}

// scans counts the scans of a JPEG. Within its data, 0xFF does not occur before anything but 0x00
// and restarts.
func scans(data []byte) int { return bytes.Count(data, []byte{0xff, 0xda}) }

// imageType returns the type of an image that models can read. The content decides, not the name
// that hostile code chose: a client that gets a wrong type may refuse the whole conversation.
func imageType(name string, content []byte) (kind string, ok bool) {
	kind = http.DetectContentType(content)
	ok = slices.Contains([]string{"image/png", "image/jpeg", "image/gif", "image/webp"}, kind)
	return kind, ok && strings.HasPrefix(mediatype.ByName(name), "image/")
}

// scaled fits an image into maxImageSide and limit bytes: as PNG, else as JPEG, else at a smaller
// size.
func scaled(full image.Image, limit int) *mcp.ImageContent {
	for side := maxImageSide; side > 16; side = side * 2 / 3 {
		small := resized(full, side)
		var b bytes.Buffer
		if err := png.Encode(&b, small); err == nil && b.Len() <= limit {
			return &mcp.ImageContent{Data: b.Bytes(), MIMEType: "image/png"}
		}
		b.Reset()
		white := image.NewRGBA(small.Bounds()) // JPEG has no transparency
		draw.Draw(white, white.Bounds(), image.White, image.Point{}, draw.Src)
		draw.Draw(white, white.Bounds(), small, image.Point{}, draw.Over)
		if err := jpeg.Encode(&b, white, &jpeg.Options{Quality: 80}); err == nil && b.Len() <= limit {
			return &mcp.ImageContent{Data: b.Bytes(), MIMEType: "image/jpeg"}
		}
	}
	return nil
}

// resized returns an image with no side longer than side.
func resized(full image.Image, side int) *image.RGBA {
	w, h := full.Bounds().Dx(), full.Bounds().Dy()
	if longer := max(w, h); longer > side {
		w, h = max(1, w*side/longer), max(1, h*side/longer)
	}
	small := image.NewRGBA(image.Rect(0, 0, w, h))
	draw.ApproxBiLinear.Scale(small, small.Bounds(), full, full.Bounds(), draw.Src, nil)
	return small
}

// missingImages names the images of a run that its result does not show.
func missingImages(hidden []executor.Display, shown int) string {
	n := len(hidden)
	if n == 0 {
		return ""
	}
	more := ""
	if shown > 0 {
		more = " more"
	}
	text := fmt.Sprintf("%d%s images are not shown here", n, more)
	if n == 1 {
		text = "1" + more + " image is not shown here"
	}
	var names []string
	for _, d := range hidden {
		switch {
		case d.File == "":
		case len(names) < maxFactFiles:
			names = append(names, linkedName(d.File, d.URL))
		default:
			names = append(names, factName(d.File))
		}
	}
	if len(names) == 0 {
		return text
	}
	return text + ": " + strings.Join(names, ", ")
}
