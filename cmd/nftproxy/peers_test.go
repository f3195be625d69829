// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// The address of the API server is known before the first connection, and that of a name after it.
func TestPeers(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	want := []netip.AddrPort{netip.MustParseAddrPort(strings.TrimPrefix(server.URL, "http://"))}
	var p peers
	p.follow(&rest.Config{Host: server.URL})
	if got := p.list(); !slices.Equal(got, want) {
		t.Errorf("%v before a connection, want %v", got, want)
	}
	p = peers{}
	named := &rest.Config{Host: strings.Replace(server.URL, "127.0.0.1", "localhost", 1)}
	p.follow(named)
	if got := p.list(); len(got) != 0 {
		t.Errorf("%v for a name before a connection", got)
	}
	client, err := rest.HTTPClientFor(named)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := client.Get(named.Host)
	if err != nil {
		t.Fatal(err)
	}
	_ = reply.Body.Close()
	if got := p.list(); !slices.Equal(got, want) {
		t.Errorf("%v after a connection, want %v", got, want)
	}
	p = peers{}
	p.follow(&rest.Config{Host: "https://192.0.2.1"})
	if got := p.list(); !slices.Equal(got, []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:443")}) {
		t.Errorf("%v without a port", got)
	}
}
