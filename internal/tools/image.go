package tools

import (
	"bytes"
	"fmt"
	"image"
	_ "image/gif" // what models can look at
	"image/jpeg"
	"image/png"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/image/draw"
	_ "golang.org/x/image/webp"

	"mcp-code-sandbox/internal/executor"
)

const (
	// maxImageSide is what a model makes use of; a larger image costs tokens and shows no more.
	maxImageSide = 1568
	// maxImageBytes bounds the images of one result together. The Python SDK 2.x refuses an event of more than 1 MiB:
	// this much is 853 KiB in base64, and leaves room for the output.
	maxImageBytes = 640 << 10
	// maxImagePixels bounds the memory that decoding takes: the image is hostile.
	maxImagePixels = 16 << 20
	// maxImages bounds the images of one result.
	maxImages = 10
	// maxMissing bounds the names of images that are left out.
	maxMissing = 5
)

// scaling bounds how many images are in memory at one time.
type scaling chan struct{}

// content is an image for a model, made smaller to fit into limit bytes; nil when it is not an image that can be shown.
func (s scaling) content(name string, data []byte, limit int) *mcp.ImageContent {
	if kind, fits := imageAsIs(name, data, limit); fits || kind == "" {
		return content(name, data, limit)
	}
	s <- struct{}{}
	defer func() { <-s }()
	return content(name, data, limit)
}

// imageAsIs returns the type of an image, empty if it cannot be shown, and whether it may be shown as it is.
func imageAsIs(name string, data []byte, limit int) (kind string, fits bool) {
	kind, ok := imageType(name, data)
	if !ok {
		return "", false
	}
	config, _, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil || config.Width <= 0 || config.Height <= 0 || config.Width > maxImagePixels/config.Height {
		return "", false
	}
	return kind, len(data) <= limit && max(config.Width, config.Height) <= maxImageSide
}

// content is scaling.content for who has a turn, or needs none.
func content(name string, data []byte, limit int) *mcp.ImageContent {
	kind, fits := imageAsIs(name, data, limit)
	switch {
	case kind == "":
		return nil
	case fits:
		return &mcp.ImageContent{Data: data, MIMEType: kind}
	}
	full, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return nil
	}
	return scaled(full, limit)
}

// display is the content of a display. While it waits for its turn, it keeps no reference to the data: the executor may drop it.
func (s scaling) display(d executor.Display, name string, limit int) *mcp.ImageContent {
	if data, _ := d.Content(); len(data) <= limit {
		return s.content(name, data, limit)
	}
	s <- struct{}{}
	defer func() { <-s }()
	data, _ := d.Content()
	return content(name, data, limit)
}

// scaled fits an image into maxImageSide and limit bytes: as PNG, else as JPEG, else at a smaller size.
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

// resized is an image of which no side is longer than the given one.
func resized(full image.Image, side int) *image.RGBA {
	w, h := full.Bounds().Dx(), full.Bounds().Dy()
	if longer := max(w, h); longer > side {
		w, h = max(1, w*side/longer), max(1, h*side/longer)
	}
	small := image.NewRGBA(image.Rect(0, 0, w, h))
	draw.ApproxBiLinear.Scale(small, small.Bounds(), full, full.Bounds(), draw.Src, nil)
	return small
}

// images are the images that a run showed, for a model to look at. What one leaves of its share of the bytes goes to the next.
// missing names those that are left out, empty when none is.
func (s scaling) images(displays []executor.Display) (out []mcp.Content, missing string) {
	name := func(d executor.Display) string { return "." + strings.TrimPrefix(d.MIME, "image/") }
	var shown, hidden []executor.Display
	for _, d := range displays {
		data, _ := d.Content()
		if _, ok := imageType(name(d), data); ok && len(shown) < maxImages {
			shown = append(shown, d)
		} else if strings.HasPrefix(d.MIME, "image/") {
			hidden = append(hidden, d)
		}
	}
	left := maxImageBytes
	for i, d := range shown {
		if c := s.display(d, name(d), left/(len(shown)-i)); c != nil {
			out = append(out, c)
			left -= len(c.Data)
		} else {
			hidden = append(hidden, d)
		}
	}
	return out, missingImages(hidden, len(out))
}

// missingImages says which images of a run its result does not show, beside those that it does.
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
		text = fmt.Sprintf("1%s image is not shown here", more)
	}
	var names []string
	for _, d := range hidden {
		if d.File != "" && len(names) < maxMissing {
			names = append(names, d.File)
		}
	}
	if len(names) == 0 {
		return text
	}
	if text += ": " + strings.Join(names, ", "); n > len(names) {
		text += fmt.Sprintf(" and %d more", n-len(names))
	}
	return text
}
