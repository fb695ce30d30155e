package executor

import "testing"

func TestUnfence(t *testing.T) {
	for in, want := range map[string]string{
		"print(1)":                      "print(1)",
		"```python\nprint(1)\n```":      "print(1)\n",
		"\n ```\nx = 1\n\nx\n```  \n":   "x = 1\n\nx\n",
		"```{python}\nx\n```":           "x\n",
		"```js title\nx\n```":           "x\n",
		"```\n```":                      "",
		"```python\nprint(1)":           "print(1)\n",
		"print(1)\n```":                 "print(1)\n",
		"s = `\n```\n`\n```":            "s = `\n```\n`\n```",
		"```py\na\n```\nb\n```\nc\n```": "```py\na\n```\nb\n```\nc\n```",
		"`ls`":                          "`ls`",
		"```x`+y`":                      "```x`+y`",
	} {
		if got := unfence(in); got != want {
			t.Errorf("unfence(%q) = %q, want %q", in, got, want)
		}
	}
}
