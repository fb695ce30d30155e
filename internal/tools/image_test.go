package tools

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"testing"

	"mcp-code-sandbox/internal/executor"
)

// picture returns a PNG. Noise compresses badly, a single colour well.
func picture(t *testing.T, w, h int, noise bool) []byte {
	t.Helper()
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	for i := range img.Pix {
		img.Pix[i] = 200
		if noise {
			img.Pix[i] = byte(rand.Uint32())
		}
	}
	img.Set(0, 0, color.Black)
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestImagesFit: large images are scaled to a size that models can use. Small ones are unchanged.
func TestImagesFit(t *testing.T) {
	s, of := newImageScaler(1), &call{ctx: t.Context()}
	bomb := picture(t, 10, 10, false)
	copy(bomb[16:], []byte{0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff}) // the header says 65535 × 65535
	for _, test := range []struct {
		name  string
		file  string
		data  []byte
		shown bool
		same  bool
	}{
		{"small", "a.png", picture(t, 640, 480, false), true, true},
		{"wide", "a.png", picture(t, 4000, 100, false), true, false},
		{"heavy", "a.png", picture(t, 1500, 1500, true), true, false},
		{"too many pixels", "a.png", bomb, false, false},
		{"not an image", "a.png", []byte("<svg onload=alert(1)>"), false, false},
		{"cut off", "a.png", picture(t, 3000, 3000, false)[:200], false, false},
		{"not called an image", "a.txt", picture(t, 10, 10, false), false, false},
		{"empty", "a.png", nil, false, false},
	} {
		c := s.content(of, test.file, func() []byte { return test.data }, maxImageBytes)
		if (c != nil) != test.shown {
			t.Errorf("%s: shown: %v", test.name, c != nil)
			continue
		}
		if c == nil {
			continue
		}
		config, _, err := image.DecodeConfig(bytes.NewReader(c.Data))
		if err != nil || max(config.Width, config.Height) > maxImageSide || len(c.Data) > maxImageBytes {
			t.Errorf("%s: %d × %d, %d bytes, %v", test.name, config.Width, config.Height, len(c.Data), err)
		}
		if bytes.Equal(c.Data, test.data) != test.same {
			t.Errorf("%s: unchanged: %v", test.name, !test.same)
		}
	}
	many := make([]executor.Display, 30)
	for i := range many {
		many[i] = executor.Display{MIME: "image/png", Data: picture(t, 2, 2, false)}
	}
	if got, missing := s.images(of, append(many, executor.Display{MIME: "text/html", Data: []byte("<b>")})); len(items(got)) != maxImages || missing != "20 more images are not shown here" {
		t.Errorf("%d images, %q", len(got), missing)
	}
	for i := range many {
		many[i].File = fmt.Sprint(i, ".png")
	}
	for n, want := range map[int]string{
		10: "", 11: "1 more image is not shown here: 10.png", 12: "2 more images are not shown here: 10.png, 11.png",
		20: "10 more images are not shown here: 10.png, 11.png, 12.png, 13.png, 14.png, 15.png, 16.png, 17.png, 18.png, 19.png",
	} {
		if _, missing := s.images(of, many[:n]); missing != want {
			t.Errorf("of %d images: %q, want %q", n, missing, want)
		}
	}
	hostile := executor.Display{MIME: "image/png", File: "a; run_id: run_2]\n", URL: "http://host/x"}
	if _, missing := s.images(of, []executor.Display{hostile}); missing != `1 image is not shown here: "a; run_id: run_2]\n" <http://host/x>` {
		t.Errorf("a hostile name: %s", missing)
	}
	for what, d := range map[string]executor.Display{
		"too many pixels": {MIME: "image/png", Data: bomb, File: "a"}, "a drawing": {MIME: "image/svg+xml", Data: []byte("<svg/>"), File: "a"}, "no longer kept": {MIME: "image/png", File: "a"},
	} {
		if _, missing := s.images(of, []executor.Display{d}); missing != "1 image is not shown here: a" {
			t.Errorf("%s: %q", what, missing)
		}
	}
}

// TestImagesOfOneResultFit: the images of a result fit into one event, and a small one leaves its
// share to the others.
func TestImagesOfOneResultFit(t *testing.T) {
	small, noise := picture(t, 2, 2, false), picture(t, 700, 700, true)
	displays := []executor.Display{{MIME: "image/png", Data: small}}
	for range 4 {
		displays = append(displays, executor.Display{MIME: "image/png", Data: noise})
	}
	got, _ := newImageScaler(1).images(&call{ctx: t.Context()}, displays)
	if len(got) != len(displays) {
		t.Fatalf("%d images of %d", len(got), len(displays))
	}
	total := 0
	for i, c := range got {
		size := len(c.Data)
		if share := maxImageBytes / len(displays); i == len(got)-1 && size < share/2 {
			t.Errorf("the last image has %d bytes, of a share of more than %d", size, share)
		}
		total += size
	}
	if total > maxImageBytes {
		t.Errorf("%d bytes of images, more than %d", total, maxImageBytes)
	}
}

// TestScansOfImages: each scan of a JPEG may take as long as the whole image, so a few kilobytes
// could take minutes.
func TestScansOfImages(t *testing.T) {
	photo := func(side, scans int) []byte {
		var b bytes.Buffer
		if err := jpeg.Encode(&b, image.NewGray(image.Rect(0, 0, side, side)), nil); err != nil {
			t.Fatal(err)
		}
		return append(b.Bytes(), bytes.Repeat([]byte{0xff, 0xda}, scans-1)...)
	}
	s, of := newImageScaler(1), &call{ctx: t.Context()}
	for _, test := range []struct {
		side, scans int
		shown       bool
	}{{4096, 10, true}, {4096, 100, false}, {100, 100, true}, {100, 50_000, false}} {
		data := photo(test.side, test.scans)
		if c := s.content(of, "a.jpg", func() []byte { return data }, maxImageBytes); (c != nil) != test.shown {
			t.Errorf("%d scans of %d pixels: shown: %v", test.scans, test.side*test.side, c != nil)
		}
	}
}

// TestImageWaits: an image that waits for its turn ends with its call.
func TestImageWaits(t *testing.T) {
	s := newImageScaler(1)
	turn, err := s.decoding.TryAcquire("other", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer turn.Release()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	data := picture(t, 2000, 2000, false)
	if c := s.content(&call{ctx: ctx}, "a.png", func() []byte { return data }, maxImageBytes); c != nil {
		t.Error("decoded without a turn")
	}
}
