//go:build linux

package integration

import (
	"strings"
	"testing"
)

// TestFiguresOnce: every figure is shown once, when it is saved or shown, and at the end if it was
// left open.
func TestFiguresOnce(t *testing.T) {
	n := serve(t).notebook(t)
	const setup = "import matplotlib.pyplot as plt\nfrom PIL import Image\npicture = Image.new('RGB', (9, 9), 'red')\n"
	const plot = "fig, ax = plt.subplots()\nax.plot([1, 2])\n"
	for _, f := range []struct{ name, code, want string }{
		{"left open", plot, "[image .plots/*.png]\n"},
		{"shown", plot + "plt.show()\nprint('after')", "[image .plots/*.png]\nafter\n"},
		{"shown by itself", plot + "fig.show()\nprint('after')", "[image .plots/*.png]\nafter\n"},
		{"saved", plot + "plt.savefig('c.png')\nprint('after')", "[image c.png]\nafter\n"},
		{"saved and shown", plot + "fig.savefig('c.png', dpi=50)\nplt.show()", "[image c.png]\n"},
		{"saved and closed", plot + "fig.savefig('c.png', bbox_inches='tight')\nplt.close()", "[image c.png]\n"},
		{"saved and changed", plot + "fig.savefig('c.png')\nax.set_title('later');", "[image c.png]\n[image .plots/*.png]\n"},
		{"saved twice", plot + "fig.savefig('c.png')\nfig.savefig('d.jpg')\nfig.savefig('e.pdf')", "[image c.png]\n"},
		{"saved as SVG", plot + "fig.savefig('e.svg')", "[image .plots/*.png]\n"},
		{"saved elsewhere", plot + "fig.savefig('/tmp/c.png')", "[image .plots/*.png]\n"},
		{"saved below", "import os\nos.makedirs('out put', exist_ok=True)\n" + plot + "fig.savefig('out put/é.png')", "[image out put/é.png]\n"},
		{"closed", plot + "plt.close(fig)", ""},
		{"several", "for i in range(3):\n    print(i)\n    plt.figure()\n    plt.plot([i])\n    plt.show()", "0\n[image .plots/*.png]\n1\n[image .plots/*.png]\n2\n[image .plots/*.png]\n"},
		{"subplots", "fig, axes = plt.subplots(2, 2)\naxes[1, 1].plot([1]);", "[image .plots/*.png]\n"},
		{"animated", plot + "from matplotlib.animation import FuncAnimation\nFuncAnimation(fig, lambda i: ax.plot([i]), frames=2).save('a.gif', writer='pillow')\nplt.close()", "[image a.gif]\n"},
		{"picture", "picture.save('p.png')", "[image p.png]\n"},
		{"picture in an open file", "with open('p.png', 'wb') as f: picture.save(f)", "[image p.png]\n"},
		{"picture in memory", "import io\npicture.save(io.BytesIO(), 'PNG')", ""},
		{"picture shown", "picture.show()", "[image .plots/*.png]\n"},
		{"picture as WebP", "picture.save('p.webp')", "[image p.webp]\n"},
		{"no picture", "try: picture.save('p.unknown')\nexcept ValueError: print('no')", "no\n"},
	} {
		n.want(t, "f", setup+f.code+"\nNone", f.want, 0)
		n.want(t, "", setup+f.code, f.want, 0)
	}
	n.steps(t, "f",
		step{code: plot + "fig", want: "[image .plots/*.png]\n"},
		step{code: "fig", want: "[image .plots/*.png]\n"},
		step{code: "from matplotlib.figure import Figure\nalone = Figure()\nalone.add_subplot()\nalone", want: "[image .plots/*.png]\n"},
		step{code: "plt.figure()", want: "<Figure size 640x480 with 0 Axes>\n"},
		step{code: plot + "plt.title('T')", want: "Text(0.5, 1.0, 'T')\n[image .plots/*.png]\n"},
		step{code: plot + "1/0", want: "^Traceback .*ZeroDivisionError: division by zero\n\\[image .plots/\\*.png\\]\n", exitCode: 1},
		step{code: "import pandas as pd\npd.Series([1, 2]).plot();", want: "[image .plots/*.png]\n"},
	)
	got := n.run(t, "f", "from IPython.display import Image\n"+plot+"fig.savefig('c.png')\nplt.close()\nImage('c.png')")
	if len(got.images) != 1 || strings.Contains(got.text, ".plots") {
		t.Errorf("the same image twice: %+v", got)
	}
}

// TestPlotly: an interactive figure cannot be drawn, and says what to do.
func TestPlotly(t *testing.T) {
	n := serve(t).notebook(t)
	const figure = "import plotly.express as px\nfig = px.line(x=[1, 2], y=[3, 4])\n"
	const want = "[plotly figure (scatter): it is interactive and cannot be drawn here. Save it for the user with " +
		"fig.write_html(\"/data/figure.html\", include_plotlyjs=\"cdn\"). To see an image, draw it with matplotlib.]\n"
	n.want(t, "p", figure+"fig.show()", want, 0)
	n.want(t, "p", figure+"fig", want, 0)
	n.want(t, "p", "import plotly.io\nplotly.io.renderers.default = 'notebook'\nfig.show()\nfig.write_html('f.html', include_plotlyjs='cdn')", want, 0)
	n.want(t, "", figure+"fig.show()", want, 0)
}

// TestFonts: plots have characters of Chinese, Japanese and Korean, and emoji, without warnings.
func TestFonts(t *testing.T) {
	n := serve(t).notebook(t)
	const draw = `
import io, warnings
warnings.simplefilter("error")
import matplotlib.pyplot as plt, numpy as np
from PIL import Image
def drawn(text, **options):
    fig = plt.figure(figsize=(2, 1), dpi=50)
    fig.text(0, 0.3, text, size=20, **options)
    file = io.BytesIO()
    fig.savefig(file)
    plt.close(fig)
    return np.asarray(Image.open(file)).tobytes()
texts = ["中", "国", "繁", "體", "ひ", "カ", "日", "한", "글", "😀", "🚀", "✅", "a"]
print(len({drawn(text) for text in texts}))
`
	n.want(t, "f", draw, "13\n", 0)
	n.want(t, "", draw, "13\n", 0)
	n.want(t, "f", "plt.rcParams['font.sans-serif'] = ['SimHei', 'Microsoft YaHei']\nprint(drawn('中') != drawn('国', family='Malgun Gothic'))", "True\n", 0)
}
