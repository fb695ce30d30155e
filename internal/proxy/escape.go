package proxy

import (
	"bytes"
	"strings"
)

// escapes start an escaped character in a URL, in JSON and in HTML.
var escapes = [...]byte{'%', '\\', '&'}

func isEscape(c byte) bool { return c == '%' || c == '\\' || c == '&' }

// decodeEscape returns the ASCII character that buf starts with in escaped form, and the length of
// that form. The width is 0 if buf starts with no escape, and -1 if more of buf is needed to
// decide.
func decodeEscape(buf []byte) (c byte, width int) {
	switch buf[0] {
	case '%':
		return hexEscape(buf, "%")
	case '\\':
		if len(buf) < 2 {
			return 0, -1
		}
		switch buf[1] {
		case 'u':
			return hexEscape(buf, `\u00`)
		case 'x':
			return hexEscape(buf, `\x`)
		case '/', '\\', '"', '\'':
			return buf[1], 2
		}
	case '&':
		return htmlEscape(buf)
	}
	return 0, 0
}

// hexEscape reads a prefix and two hexadecimal digits.
func hexEscape(buf []byte, prefix string) (c byte, width int) {
	n := min(len(buf), len(prefix))
	if string(buf[:n]) != prefix[:n] {
		return 0, 0
	}
	value := 0
	for i := len(prefix); i < len(prefix)+2; i++ {
		if i >= len(buf) {
			return 0, -1
		}
		digit := unhex(buf[i])
		if digit < 0 {
			return 0, 0
		}
		value = value<<4 | digit
	}
	return byte(value), len(prefix) + 2
}

var htmlNames = map[string]byte{"amp": '&', "lt": '<', "gt": '>', "quot": '"', "apos": '\'', "sol": '/', "plus": '+', "equals": '='}

// htmlEscape reads &name;, &#47; or &#x2f;.
func htmlEscape(buf []byte) (c byte, width int) {
	end := bytes.IndexByte(buf[:min(len(buf), maxEscape)], ';')
	if end < 0 {
		if len(buf) < maxEscape && strings.Trim(string(buf[1:]), "#0123456789abcdefghijklmnopqrstuvwxyzABCDEFX") == "" {
			return 0, -1
		}
		return 0, 0
	}
	name := string(buf[1:end])
	digits, numeric := strings.CutPrefix(name, "#")
	if !numeric {
		c, ok := htmlNames[name]
		if !ok {
			return 0, 0
		}
		return c, end + 1
	}
	base := 10
	if d := strings.TrimLeft(digits, "xX"); len(d) == len(digits)-1 {
		digits, base = d, 16
	}
	value := 0
	for i := range len(digits) {
		digit := unhex(digits[i])
		if digit < 0 || digit >= base {
			return 0, 0
		}
		value = value*base + digit
	}
	if digits == "" || value > 0x7f {
		return 0, 0
	}
	return byte(value), end + 1
}

// unhex returns the value of a hexadecimal digit, or -1.
func unhex(c byte) int {
	if 'A' <= c && c <= 'F' {
		c += 'a' - 'A'
	}
	return strings.IndexByte("0123456789abcdef", c)
}
