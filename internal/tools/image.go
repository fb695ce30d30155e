package tools

import (
	"bytes"
	"image"
	_ "image/gif" // what models can look at
	"image/jpeg"
	"image/png"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/image/draw"
	_ "golang.org/x/image/webp"

	"mcp-code-sandbox/internal/engine"
)

const (
	// maxImageSide and maxImageBytes are what a model makes use of; a larger image costs tokens and shows no more.
	maxImageSide  = 1568
	maxImageBytes = 1 << 20
	// maxImagePixels bounds the memory that decoding takes: the image is hostile.
	maxImagePixels = 16 << 20
	// maxImages bounds the images of one result.
	maxImages = 10
)

// scaling bounds how many images are in memory at one time.
type scaling chan struct{}

// content is an image for a model, made smaller if need be; nil when it is no image that can be shown.
func (s scaling) content(name string, data []byte) mcp.Content {
	kind, ok := imageType(name, data)
	if !ok {
		return nil
	}
	config, _, err := image.DecodeConfig(bytes.NewReader(data))
	switch {
	case err != nil || config.Width <= 0 || config.Height <= 0 || config.Width > maxImagePixels/config.Height:
		return nil
	case len(data) <= maxImageBytes && max(config.Width, config.Height) <= maxImageSide:
		return &mcp.ImageContent{Data: data, MIMEType: kind}
	}
	s <- struct{}{}
	defer func() { <-s }()
	full, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return nil
	}
	return scaled(full)
}

// scaled fits an image into maxImageSide and, by compressing it harder if it must, into maxImageBytes.
func scaled(full image.Image) mcp.Content {
	w, h := full.Bounds().Dx(), full.Bounds().Dy()
	if side := max(w, h); side > maxImageSide {
		w, h = max(1, w*maxImageSide/side), max(1, h*maxImageSide/side)
	}
	small := image.NewRGBA(image.Rect(0, 0, w, h))
	draw.ApproxBiLinear.Scale(small, small.Bounds(), full, full.Bounds(), draw.Src, nil)
	var b bytes.Buffer
	if err := png.Encode(&b, small); err == nil && b.Len() <= maxImageBytes {
		return &mcp.ImageContent{Data: b.Bytes(), MIMEType: "image/png"}
	}
	b.Reset()
	white := image.NewRGBA(small.Bounds()) // JPEG has no transparency
	draw.Draw(white, white.Bounds(), image.White, image.Point{}, draw.Src)
	draw.Draw(white, white.Bounds(), small, image.Point{}, draw.Over)
	if err := jpeg.Encode(&b, white, &jpeg.Options{Quality: 80}); err != nil || b.Len() > 2*maxImageBytes {
		return nil
	}
	return &mcp.ImageContent{Data: b.Bytes(), MIMEType: "image/jpeg"}
}

// images are the images that a run showed, for a model to look at.
func (s scaling) images(displays []engine.Display) []mcp.Content {
	var out []mcp.Content
	for _, d := range displays {
		if len(out) == maxImages {
			break
		}
		if c := s.content("."+strings.TrimPrefix(d.MIME, "image/"), d.Data); c != nil {
			out = append(out, c)
		}
	}
	return out
}
