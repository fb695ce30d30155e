//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/egress"
)

// serviceName is a name that the certificate of the called service is for.
const serviceName = "example.com"

// startEgress makes hosts reachable by name. Every name leads to this machine.
func startEgress(trail *audit.Trail) (*egress.Egress, error) {
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	return egress.New(egress.Config{
		Closed: closednet.New(context.Background(), closednet.Config{Allow: []netip.Prefix{loopback}}), Audit: trail,
		Resolver: &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go answerNames(there)
			return here, nil
		}},
	})
}

// answerNames answers DNS queries as over TCP.
func answerNames(c net.Conn) {
	defer c.Close()
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, query); err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(query) != nil || len(m.Questions) == 0 {
			return
		}
		m.Response, m.Additionals = true, nil
		if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}, Body: &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
			}}
		}
		answer, err := m.AppendPack(make([]byte, 2, 512))
		if err != nil {
			return
		}
		binary.BigEndian.PutUint16(answer, uint16(len(answer)-2))
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// perCaller is how many requests in a row come from one caller, whose connections have a rate.
const perCaller = 500

// byName returns a client of the service that reaches it by name from a sandbox, and its address.
func byName(hosts *egress.Egress, up *httptest.Server, base *url.URL, inside string) (*http.Client, string, error) {
	rules, err := hosts.Check([]string{serviceName + ":" + base.Port()})
	if err != nil {
		return nil, "", err
	}
	requests, proxy := 0, (*url.URL)(nil)
	transport := up.Client().Transport.(*http.Transport).Clone()
	transport.Proxy = func(*http.Request) (_ *url.URL, err error) {
		if requests++; requests%perCaller == 1 {
			env, _ := hosts.Grant(fmt.Sprint("bench ", requests), "run", sandboxID, rules)
			if proxy, err = url.Parse(env["HTTPS_PROXY"]); err == nil {
				proxy.Host = strings.TrimPrefix(inside, "http://")
			}
		}
		return proxy, err
	}
	return &http.Client{Transport: transport}, base.Scheme + "://" + serviceName + ":" + base.Port(), nil
}

// unkept returns a client like c that opens a connection for each request.
func unkept(c *http.Client) *http.Client {
	transport := c.Transport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true
	return &http.Client{Transport: transport}
}
