// Package egresstest makes an internet for tests: a network namespace with a name server, web
// servers and public addresses, and one that can reach nothing else, in which the test runs.
package egresstest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// Addresses of the world. Host is the test's own, and the only one there; Private and Metadata
// answer as the public ones do.
const (
	Public, Public2   = "203.0.114.1", "203.0.114.2"
	Private, Metadata = "10.9.9.9", "169.254.169.254"
	NameServer        = "203.0.114.53"
	Host, gateway     = "203.0.115.2", "203.0.115.1"
)

// GreetingPort serves a greeting before it echoes what it gets.
const GreetingPort = 5432

// World is the other namespace.
type World struct {
	// CA signs the certificates of the web servers; CAPEM is it as a file.
	CA    *x509.CertPool
	CAPEM []byte

	do chan func() // runs in the namespace

	mu         sync.Mutex
	names      map[string]func() []string
	addresses6 map[string]string
	sites      map[string]http.Handler
	queries    map[string]int
}

const envWorld = "EGRESSTEST_WORLD"

// Enter runs the test again in a process with network and mount namespaces of its own. There it
// returns the world; otherwise it reports how the test went and returns nil.
func Enter(t *testing.T, env ...string) *World {
	t.Helper()
	if os.Getenv(envWorld) != "" {
		return newWorld(t)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.timeout=280s", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(append(os.Environ(), envWorld+"=1"), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	switch {
	case strings.Contains(string(out), "--- SKIP: "+t.Name()):
		t.Skip("in a network namespace")
	case err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Errorf("in a network namespace: %v", err)
	}
	return nil
}

func newWorld(t *testing.T) *World {
	t.Helper()
	w := &World{do: make(chan func()), names: map[string]func() []string{}, sites: map[string]http.Handler{}, queries: map[string]int{}, addresses6: map[string]string{}}
	thread := make(chan int)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			panic(err)
		}
		thread <- unix.Gettid()
		for f := range w.do {
			f()
		}
	}()
	t.Cleanup(func() { close(w.do) })
	id := strconv.Itoa(<-thread)
	ip := func(text string) {
		if out, err := exec.Command("ip", strings.Fields(text)...).CombinedOutput(); err != nil {
			t.Errorf("ip %s: %v\n%s", text, err, out)
		}
	}
	ip("link set lo up")
	ip("link add up0 type veth peer name down0 netns " + id)
	ip("addr add " + Host + "/24 dev up0")
	ip("link set up0 up")
	w.in(func() {
		ip("link set lo up")
		ip("link set down0 up")
		ip("addr add " + gateway + "/24 dev down0")
		for _, addr := range []string{Public, Public2, Private, Metadata, NameServer} {
			ip("addr add " + addr + "/32 dev lo")
		}
	})
	ip("route add default via " + gateway)
	if t.Failed() {
		t.FailNow()
	}
	w.serveNames(t)
	w.serveWeb(t)
	w.Serve(t, "0.0.0.0:"+strconv.Itoa(GreetingPort), func(c net.Conn) {
		fmt.Fprintf(c, "greeting from %s\n", c.LocalAddr())
		_, _ = io.Copy(c, c)
	})
	return w
}

func (w *World) in(f func()) {
	done := make(chan struct{})
	w.do <- func() { defer close(done); f() }
	<-done
}

// Listen listens in the world.
func (w *World) Listen(t *testing.T, address string) (l net.Listener) {
	t.Helper()
	var err error
	w.in(func() { l, err = net.Listen("tcp4", address) })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Serve serves connections in the world until the test ends. It then closes them.
func (w *World) Serve(t *testing.T, address string, handle func(net.Conn)) {
	t.Helper()
	l := w.Listen(t, address)
	var all sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			all.Go(func() {
				handle(c)
				c.Close()
				mu.Lock()
				delete(open, c)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
}

// Name makes the name server answer with addresses, or with one other name (a CNAME).
func (w *World) Name(name string, answers ...string) {
	w.NameFunc(name, func() []string { return answers })
}

// Name6 makes the name server answer with an IPv6 address alone.
func (w *World) Name6(name, address string) {
	w.Name(name)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addresses6[name] = address
}

// NameFunc makes the name server ask f for each answer with IPv4 addresses.
func (w *World) NameFunc(name string, f func() []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[name] = f
}

// Site makes the web servers answer for a host with h.
func (w *World) Site(host string, h http.Handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sites[host] = h
}

func (w *World) site(host string) http.Handler {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h := w.sites[host]; h != nil {
		return h
	}
	return http.HandlerFunc(page)
}

// Queries returns how often the IPv4 addresses of each name were looked up, and forgets it. A name
// of which only others were looked up is there with 0.
func (w *World) Queries() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.queries
	w.queries = map[string]int{}
	return seen
}

// Resolver asks the world's name server.
func (w *World) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, NameServer+":53")
	}}
}

// UseResolver makes the name server that of all programs in the test's mount namespace.
func (w *World) UseResolver(t *testing.T) {
	t.Helper()
	conf := t.TempDir() + "/resolv.conf"
	if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		os.WriteFile(conf, []byte("nameserver "+NameServer+"\n"), 0o644),
		unix.Mount(conf, "/etc/resolv.conf", "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
}

func (w *World) serveNames(t *testing.T) {
	t.Helper()
	var conn net.PacketConn
	var err error
	w.in(func() { conn, err = net.ListenPacket("udp4", NameServer+":53") })
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { conn.Close(); <-done })
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			if out, err := w.answer(m).Pack(); err == nil {
				_, _ = conn.WriteTo(out, from)
			}
		}
	}()
}

func (w *World) answer(m dnsmessage.Message) *dnsmessage.Message {
	q := m.Questions[0]
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	a := &dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true, RCode: dnsmessage.RCodeNameError}, Questions: m.Questions}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queries[name] += 0
	if q.Type == dnsmessage.TypeA {
		w.queries[name]++
	}
	f := w.names[name]
	if f == nil {
		return a
	}
	a.RCode = dnsmessage.RCodeSuccess
	head := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET}
	if q.Type == dnsmessage.TypeAAAA {
		if addr := net.ParseIP(w.addresses6[name]); addr != nil {
			a.Answers = append(a.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: [16]byte(addr)}})
		}
	}
	if q.Type != dnsmessage.TypeA {
		return a
	}
	for _, text := range f() {
		addr := net.ParseIP(text).To4()
		if addr == nil {
			to := dnsmessage.MustNewName(text + ".")
			a.Answers = append(a.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.CNAMEResource{CNAME: to}})
			head.Name = to
			for _, text := range w.names[text]() {
				a.Answers = append(a.Answers, resourceA(head, net.ParseIP(text).To4()))
			}
			continue
		}
		a.Answers = append(a.Answers, resourceA(head, addr))
	}
	return a
}

func resourceA(head dnsmessage.ResourceHeader, addr net.IP) dnsmessage.Resource {
	return dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: [4]byte(addr)}}
}

// serveWeb serves every name on all addresses: HTTP on port 80 and 8080, HTTPS on 443 and 8443.
func (w *World) serveWeb(t *testing.T) {
	t.Helper()
	ca, key := newCA(t)
	w.CA = x509.NewCertPool()
	w.CA.AddCert(ca)
	w.CAPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})
	config := &tls.Config{NextProtos: []string{"http/1.1"}, GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		return newLeaf(hello.ServerName, ca, key)
	}}
	handler := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.site(r.Host).ServeHTTP(rw, r) })
	for _, port := range []string{"80", "8080", "443", "8443"} {
		l := w.Listen(t, "0.0.0.0:"+port)
		if strings.HasSuffix(port, "443") {
			l = tls.NewListener(l, config)
		}
		srv := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}
		done := make(chan struct{})
		go func() { defer close(done); _ = srv.Serve(l) }()
		t.Cleanup(func() { srv.Close(); <-done })
	}
}

// page says what the server saw. /bytes/N answers with N bytes, and /slow does not end.
func page(w http.ResponseWriter, r *http.Request) {
	if text, ok := strings.CutPrefix(r.URL.Path, "/bytes/"); ok {
		n, _ := strconv.ParseInt(text, 10, 64)
		_, _ = io.CopyN(w, zeros{}, n)
		return
	}
	if r.URL.Path == "/slow" {
		_, _ = io.WriteString(w, "begun\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	}
	body, _ := io.Copy(io.Discard, r.Body)
	fmt.Fprintf(w, "%s %s host=%s body=%d", r.Method, r.RequestURI, r.Host, body)
	for _, name := range []string{"Proxy-Authorization", "Proxy-Connection", "Connection", "Upgrade", "X-Test"} {
		if v := r.Header.Get(name); v != "" {
			fmt.Fprintf(w, " %s=%s", name, v)
		}
	}
	fmt.Fprintln(w)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func newCA(t *testing.T) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "egresstest"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Unix(0, 0), NotAfter: time.Now().AddDate(1, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return ca, key
}

func newLeaf(name string, ca *x509.Certificate, key *ecdsa.PrivateKey) (*tls.Certificate, error) {
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, NotBefore: time.Unix(0, 0), NotAfter: ca.NotAfter}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, key)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
