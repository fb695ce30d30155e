package executiontoken

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/secret"
)

var (
	now  = time.Unix(1_700_000_000, 0)
	root = bytes.Repeat([]byte{7}, 32)
)

const purpose = "execution token"

func claims() Claims {
	return Claims{
		JTI: "00112233445566778899aabbccddeeff", Iss: "https://sandbox.example", Aud: Audience("datadog"), Sub: "local", RID: "exec-1",
		Mth: []string{"GET"}, Pth: []string{"/api/v1/**", "/a<b>&c"}, Iat: now.Unix(), Nbf: now.Unix(), Exp: now.Unix() + 300, Max: 5, Bnd: "net",
	}
}

func TestSignAndVerify(t *testing.T) {
	k := NewKeys(root, purpose)
	token := k.Sign(claims())
	if !strings.HasPrefix(token, "xt1.") || strings.Count(token, ".") != 3 || strings.ContainsAny(token, "=+/") {
		t.Fatalf("token %q", token)
	}
	got, err := k.Verify(token, now)
	if err != nil {
		t.Fatal(err)
	}
	want := claims()
	want.Typ = "exec"
	g, _ := json.Marshal(got)
	w, _ := json.Marshal(want)
	if !bytes.Equal(g, w) || got.Service() != "datadog" {
		t.Errorf("got %s, want %s", g, w)
	}
}

// A token is refused if any byte is changed, removed or doubled.
func TestTamperedTokensAreRefused(t *testing.T) {
	k := NewKeys(root, purpose)
	token := k.Sign(claims())
	for i := range token {
		for bit := range 8 {
			b := []byte(token)
			b[i] ^= 1 << bit
			if _, err := k.Verify(string(b), now); err == nil {
				t.Fatalf("bit %d of byte %d flipped: accepted", bit, i)
			}
		}
		if _, err := k.Verify(token[:i]+token[i+1:], now); err == nil {
			t.Fatalf("byte %d removed: accepted", i)
		}
		for _, c := range []string{"\n", "\r", "=", " ", ".", token[i : i+1]} {
			if _, err := k.Verify(token[:i]+c+token[i:], now); err == nil {
				t.Fatalf("%q put before byte %d: accepted", c, i)
			}
		}
	}
	for _, end := range []string{"\n", "=", "A", ".", "\x00"} {
		if _, err := k.Verify(token+end, now); err == nil {
			t.Errorf("%q appended: accepted", end)
		}
	}
}

// Payloads with a valid MAC that are not execution tokens.
func TestVerifyIsStrict(t *testing.T) {
	k := NewKeys(root, purpose)
	good, _ := json.Marshal(func() Claims { c := claims(); c.Typ = "exec"; return c }())
	if _, err := k.Verify(k.Seal(Prefix, good), now); err != nil {
		t.Fatalf("the pattern of the cases: %v", err)
	}
	replace := func(old, new string) []byte {
		b := bytes.Replace(good, []byte(old), []byte(new), 1)
		if bytes.Equal(b, good) {
			t.Fatalf("%s is not in %s", old, good)
		}
		return b
	}
	for name, payload := range map[string][]byte{
		"unknown field":       replace(`{`, `{"adm":true,`),
		"repeated field":      replace(`"max":5`, `"max":5,"max":500`),
		"other case":          replace(`"typ"`, `"Typ"`),
		"space":               replace(`,`, `, `),
		"trailing data":       append(bytes.Clone(good), "{}"...),
		"null":                []byte(`null`),
		"array":               []byte(`[]`),
		"empty":               {},
		"another type":        replace(`"exec"`, `"access"`),
		"no type":             replace(`"typ":"exec",`, ``),
		"short jti":           replace(`ddeeff"`, `"`),
		"jti in capitals":     replace(`aabb`, `AABB`),
		"no service":          replace(`proxy/datadog`, `proxy/`),
		"another audience":    replace(`proxy/datadog`, `mcp/datadog`),
		"no caller":           replace(`"sub":"local"`, `"sub":""`),
		"no run":              replace(`"rid":"exec-1"`, `"rid":""`),
		"bound to nothing":    replace(`"bnd":"net"`, `"bnd":""`),
		"bound to no sandbox": replace(`"bnd":"net"`, `"bnd":"sbx:"`),
		"negative max":        replace(`"max":5`, `"max":-1`),
		"a second too long":   replace(`"exp":1700000300`, `"exp":1700000901`),
		"before it is made":   replace(`"nbf":1700000000`, `"nbf":1699999999`),
		"for no time":         replace(`"exp":1700000300`, `"exp":1700000000`),
		"not yet":             replace(`"nbf":1700000000`, `"nbf":1700000003`),
	} {
		if _, err := k.Verify(k.Seal(Prefix, payload), now); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	long := claims()
	long.Pth = []string{"/" + strings.Repeat("a", MaxSize)}
	if _, err := k.Verify(k.Sign(long), now); !errors.Is(err, ErrMalformed) {
		t.Errorf("a token of more than 4 KiB: %v", err)
	}
}

func TestExpiry(t *testing.T) {
	k := NewKeys(root, purpose)
	token := k.Sign(claims())
	if _, err := k.Verify(token, now.Add(300*time.Second-1)); err != nil {
		t.Errorf("in its last moment: %v", err)
	}
	if _, err := k.Verify(token, now.Add(300*time.Second)); !errors.Is(err, ErrExpired) {
		t.Errorf("at its end: %v", err)
	}
	if _, err := k.Verify(token, now.Add(-notBeforeLeeway)); err != nil {
		t.Errorf("after the clock was set back: %v", err)
	}
	if _, err := k.Verify(token, now.Add(-notBeforeLeeway-1)); err == nil {
		t.Error("before its time: accepted")
	}
}

// A token of one purpose, prefix or root is not valid for another.
func TestKeysApart(t *testing.T) {
	k := NewKeys(root, purpose)
	payload, _ := json.Marshal(claims())
	for name, token := range map[string]string{
		"another purpose": NewKeys(root, "access").Sign(claims()),
		"another root":    NewKeys(bytes.Repeat([]byte{8}, 32), purpose).Sign(claims()),
		"another prefix":  k.Seal("at1", payload),
		"prefix replaced": Prefix + strings.TrimPrefix(k.Seal("at1", payload), "at1"),
		"key id replaced": strings.Replace(NewKeys(root, "access").Sign(claims()), NewKeys(root, "access").all[0].id, k.all[0].id, 1),
	} {
		if _, err := k.Verify(token, now); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := k.Open("at1", k.Sign(claims())); err == nil {
		t.Error("an execution token was opened as another")
	}
}

func TestRotation(t *testing.T) {
	old, new := root, bytes.Repeat([]byte{9}, 32)
	token := NewKeys(old, purpose).Sign(claims())
	both := NewKeys(new, purpose, old)
	if _, err := both.Verify(token, now); err != nil {
		t.Errorf("signed by the older key: %v", err)
	}
	if _, err := NewKeys(new, purpose).Verify(both.Sign(claims()), now); err != nil {
		t.Errorf("the new key does not sign: %v", err)
	}
	if _, err := NewKeys(old, purpose).Verify(both.Sign(claims()), now); !errors.Is(err, ErrSignature) {
		t.Errorf("the older key signs: %v", err)
	}
}

func TestRoot(t *testing.T) {
	if _, err := Root(secret.New(strings.Repeat("x", 31))); err == nil || strings.Contains(err.Error(), "xxx") {
		t.Errorf("a short secret: %v", err)
	}
	a, err := Root(secret.New(strings.Repeat("x", 32)))
	b, _ := Root(secret.New(strings.Repeat("x", 33)))
	if err != nil || len(a) != 32 || bytes.Equal(a, b) {
		t.Errorf("%x, %x, %v", a, b, err)
	}
}

func FuzzVerify(f *testing.F) {
	k := NewKeys(root, purpose)
	token := k.Sign(claims())
	f.Add(token)
	f.Add("xt1.." + "." + ".")
	f.Add(k.Seal(Prefix, []byte(`{"typ":"exec"}`)))
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := k.Verify(s, now); err == nil && s != token {
			t.Fatalf("accepted %q", s)
		}
	})
}
