package oauth

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/executiontoken"
)

func TestCodeIsForItsClientAndVerifier(t *testing.T) {
	s := newSite(t)
	client, other := s.register(), s.register()
	b := s.browser()
	for name, edit := range map[string]func(url.Values){
		"another client":         func(f url.Values) { f.Set("client_id", other) },
		"no client":              func(f url.Values) { f.Del("client_id") },
		"another verifier":       func(f url.Values) { f.Set("code_verifier", strings.Repeat("v", 43)) },
		"no verifier":            func(f url.Values) { f.Del("code_verifier") },
		"challenge as verifier":  func(f url.Values) { f.Set("code_verifier", s.ask(client, webRedirect).Get("code_challenge")) },
		"another address":        func(f url.Values) { f.Set("redirect_uri", webRedirect) },
		"another port":           func(f url.Values) { f.Set("redirect_uri", "http://127.0.0.1:1/callback") },
		"no address":             func(f url.Values) { f.Del("redirect_uri") },
		"another resource":       func(f url.Values) { f.Set("resource", "https://other.example/mcp") },
		"another code":           func(f url.Values) { f.Set("code", newSecret()) },
		"a code twice":           func(f url.Values) { f.Add("code", f.Get("code")) },
		"another kind of grant":  func(f url.Values) { f.Set("grant_type", "client_credentials") },
		"the code as a refresh":  func(f url.Values) { f.Set("grant_type", "refresh_token"); f.Set("refresh_token", f.Get("code")) },
		"a secret it never had":  nil,
		"after its minute":       nil,
		"parameters in the path": nil,
	} {
		t.Run(name, func(t *testing.T) {
			a := s.ask(client, loopbackRedirect)
			form := a.exchange(s.allow(b, a).Get("code"))
			var r reply
			switch name {
			case "a secret it never had":
				req, _ := http.NewRequest("POST", s.url("/oauth/token"), strings.NewReader(form.Encode()))
				req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				req.SetBasicAuth(client, "secret")
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				r.Status = resp.StatusCode
				if r2 := s.post("/oauth/token", form); r2.Status != 200 {
					t.Errorf("asking with a header first used the code up: %s", r2.Body)
				}
			case "after its minute":
				s.clock.advance(codeTTL)
				r = s.post("/oauth/token", form)
			case "parameters in the path":
				r = s.send("POST", "/oauth/token?"+form.Encode(), "application/x-www-form-urlencoded", "")
			default:
				edit(form)
				r = s.post("/oauth/token", form)
			}
			if r.Status/100 != 4 || r.AccessToken != "" || r.RefreshToken != "" {
				t.Errorf("%d %s", r.Status, r.Body)
			}
		})
	}
}

func TestReuseEndsEverything(t *testing.T) {
	s := newSite(t)
	client := s.register()
	b := s.browser()
	t.Run("code", func(t *testing.T) {
		a := s.ask(client, loopbackRedirect)
		form := a.exchange(s.allow(b, a).Get("code"))
		first := s.post("/oauth/token", form)
		if !s.alive(first.AccessToken) {
			t.Fatal("the first token does not work")
		}
		if r := s.post("/oauth/token", form); r.Error != "invalid_grant" {
			t.Errorf("second use: %d %s", r.Status, r.Body)
		}
		if s.alive(first.AccessToken) {
			t.Error("the access token outlives the reuse of its code")
		}
		if r := s.post("/oauth/token", a.refresh(first.RefreshToken)); r.Error != "invalid_grant" {
			t.Errorf("refresh: %d %s", r.Status, r.Body)
		}
	})
	t.Run("refresh token", func(t *testing.T) {
		a := s.ask(client, loopbackRedirect)
		first := s.tokens(b, a)
		second := s.post("/oauth/token", a.refresh(first.RefreshToken))
		if second.Status != 200 || second.RefreshToken == first.RefreshToken || !s.alive(second.AccessToken) {
			t.Fatalf("refresh: %d %s", second.Status, second.Body)
		}
		if r := s.post("/oauth/token", a.refresh(first.RefreshToken)); r.Error != "invalid_grant" {
			t.Errorf("reuse: %d %s", r.Status, r.Body)
		}
		if s.alive(first.AccessToken) || s.alive(second.AccessToken) {
			t.Error("an access token outlives the reuse of a refresh token")
		}
		if r := s.post("/oauth/token", a.refresh(second.RefreshToken)); r.Error != "invalid_grant" {
			t.Errorf("the newest refresh token after the reuse: %d %s", r.Status, r.Body)
		}
	})
	t.Run("refresh token of another client", func(t *testing.T) {
		a := s.ask(client, loopbackRedirect)
		first := s.tokens(b, a)
		stolen := s.ask(s.register(), loopbackRedirect).refresh(first.RefreshToken)
		if r := s.post("/oauth/token", stolen); r.Error != "invalid_grant" || s.alive(first.AccessToken) {
			t.Errorf("%d %s; alive %v", r.Status, r.Body, s.alive(first.AccessToken))
		}
	})
	t.Run("refresh for another resource", func(t *testing.T) {
		a := s.ask(client, loopbackRedirect)
		form := a.refresh(s.tokens(b, a).RefreshToken)
		form.Set("resource", "https://other.example/mcp")
		if r := s.post("/oauth/token", form); r.Error != "invalid_target" {
			t.Errorf("%d %s", r.Status, r.Body)
		}
		form.Del("resource")
		if r := s.post("/oauth/token", form); r.Status != 200 {
			t.Errorf("a refusal used the token up: %d %s", r.Status, r.Body)
		}
	})
}

func TestVerifyRefuses(t *testing.T) {
	s := newSite(t)
	a := s.ask(s.register(), loopbackRedirect)
	token := s.tokens(s.browser(), a).AccessToken
	if !s.alive(token) {
		t.Fatal("the token does not work")
	}
	payload, err := executiontoken.NewKeys(rootKey, "access").Open(accessPrefix, token)
	if err != nil {
		t.Fatal(err)
	}
	edited := func(old, new string) []byte {
		p := strings.Replace(string(payload), old, new, 1)
		if p == string(payload) {
			t.Fatalf("%s is not in %s", old, payload)
		}
		return []byte(p)
	}
	access := executiontoken.NewKeys(rootKey, "access")
	for name, bad := range map[string]string{
		"empty":                "",
		"the API token":        apiToken,
		"a byte changed":       token[:len(token)-1] + string(token[len(token)-1]^1),
		"another purpose":      executiontoken.NewKeys(rootKey, "execution").Seal(accessPrefix, payload),
		"another prefix":       access.Seal(executiontoken.Prefix, payload),
		"another installation": executiontoken.NewKeys(slices.Repeat([]byte{8}, 32), "access").Seal(accessPrefix, payload),
		"another audience":     access.Seal(accessPrefix, edited(s.srv.cfg.Resource, s.srv.cfg.Issuer+"/other")),
		"another issuer":       access.Seal(accessPrefix, edited(`"iss":"http`, `"iss":"httpx`)),
		"another grant":        access.Seal(accessPrefix, edited(`"grt":"`, `"grt":"x`)),
		"not JSON":             access.Seal(accessPrefix, []byte("{")),
		"too long":             access.Seal(accessPrefix, append(slices.Clone(payload), strings.Repeat(" ", 5000)...)),
	} {
		if s.alive(bad) {
			t.Errorf("%s: accepted", name)
		}
	}
	// An access token is not an execution token, even with the same keys.
	if _, err := access.Verify(token, time.Now()); err == nil {
		t.Error("an access token passes for an execution token")
	}
	s.clock.advance(accessTTL)
	if s.alive(token) {
		t.Error("it outlives its time")
	}
}

func TestRevocation(t *testing.T) {
	s := newSite(t)
	client := s.register()
	b := s.browser()
	for _, which := range []string{"access", "refresh"} {
		a := s.ask(client, loopbackRedirect)
		r := s.tokens(b, a)
		token := map[string]string{"access": r.AccessToken, "refresh": r.RefreshToken}[which]
		if got := s.post("/oauth/revoke", url.Values{"token": {token}, "client_id": {s.register()}}); got.Status != 200 || !s.alive(r.AccessToken) {
			t.Errorf("%s: another client's revocation: %d, alive %v", which, got.Status, s.alive(r.AccessToken))
		}
		if got := s.post("/oauth/revoke", url.Values{"token": {token}, "client_id": {client}}); got.Status != 200 || s.alive(r.AccessToken) {
			t.Errorf("%s: %d, alive %v", which, got.Status, s.alive(r.AccessToken))
		}
		if got := s.post("/oauth/token", a.refresh(r.RefreshToken)); got.Error != "invalid_grant" {
			t.Errorf("%s: refresh after the revocation: %d %s", which, got.Status, got.Body)
		}
	}
	if got := s.post("/oauth/revoke", url.Values{"token": {"nonsense"}, "client_id": {client}}); got.Status != 200 {
		t.Errorf("unknown token: %d", got.Status)
	}
}

func TestAllowListIsLookedAtEachTime(t *testing.T) {
	s := newSite(t)
	a := s.ask(s.register(), loopbackRedirect)
	b := s.browser()
	r := s.tokens(b, a)
	s.srv.allow = allowList{emails: map[string]bool{"bob@example.com": true}}
	if s.alive(r.AccessToken) {
		t.Error("the access token still works")
	}
	if p := b.Get(s.url("/connections")); !strings.Contains(p.Body, "Log in") {
		t.Errorf("the browser's session still works:\n%s", p.Body)
	}
	if got := s.post("/oauth/token", a.refresh(r.RefreshToken)); got.Error != "invalid_grant" {
		t.Errorf("refresh: %d %s", got.Status, got.Body)
	}
	s.srv.allow = allowList{everybody: true}
	if s.alive(r.AccessToken) {
		t.Error("the grant was not ended by the refused refresh")
	}
}

func TestGrantEnds(t *testing.T) {
	s := newSite(t)
	a := s.ask(s.register(), loopbackRedirect)
	r := s.tokens(s.browser(), a)
	for range 2 {
		s.clock.advance(13 * 24 * time.Hour)
		if r = s.post("/oauth/token", a.refresh(r.RefreshToken)); r.Status != 200 {
			t.Fatalf("%d %s", r.Status, r.Body)
		}
	}
	s.clock.advance(5 * 24 * time.Hour)
	if r = s.post("/oauth/token", a.refresh(r.RefreshToken)); r.Error != "invalid_grant" {
		t.Errorf("after a month without a login: %d %s", r.Status, r.Body)
	}
}
