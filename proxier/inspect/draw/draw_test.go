// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package draw

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nftproxy/nftproxy/proxier/inspect"
)

var update = flag.Bool("update", false, "rewrite testdata")

// web is a Service of all kinds of addresses and states.
func web() []inspect.ServicePort {
	n := 3
	return []inspect.ServicePort{{
		Name: "default/web:http", Namespace: "default", Service: "web", Port: "http", Family: "ip", Protocol: "tcp",
		Frontends: []inspect.Frontend{
			{Kind: "ClusterIP", Address: "10.96.0.1", Port: 80, Policy: "Cluster", Program: "cluster-3", State: inspect.Served, Flows: &n},
			{Kind: "External", Address: "203.0.113.1", Port: 80, Policy: "Local", Program: "external-local", State: inspect.Served,
				Restricted: true, SourceRanges: []string{"10.0.0.0/8"}, Flows: &n},
			{Kind: "NodePort", Port: 30001, Policy: "Local", State: inspect.Dropped},
		},
		Endpoints: inspect.Endpoints{Cluster: []string{"10.244.0.1:8080", "10.244.1.2:8080", "10.244.2.3:8080"},
			Local: []string{"10.244.0.1:8080"}, Hairpin: []string{"10.244.0.1:8080"}},
		Affinity: &inspect.Affinity{TimeoutSeconds: 60, Clients: map[string]int{"cluster": 4}},
		Flows:    &inspect.Flows{Total: 6, Endpoints: map[string]int{"10.244.0.1:8080": 6}},
		Problems: []string{`a "problem" <here> & there`},
	}}
}

func places() map[netip.Addr]Place {
	return map[netip.Addr]Place{
		netip.MustParseAddr("10.244.0.1"): {"node-1", "a"}, netip.MustParseAddr("10.244.1.2"): {"node-2", "a"},
		netip.MustParseAddr("10.244.2.3"): {"node-3", "b"},
	}
}

func TestForms(t *testing.T) {
	for name, p := range map[string]*Picture{
		"kernel": New("default/web", web(), Options{}),
		"source": New("default/web", web(), Options{Node: "node-1", Places: places()}),
	} {
		for form, write := range map[string]func(io.Writer) error{"svg": p.SVG, "dot": p.DOT} {
			var got bytes.Buffer
			if err := write(&got); err != nil {
				t.Fatal(err)
			}
			file := "testdata/" + name + "." + form
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got.String()); d != "" {
				t.Errorf("%s (-update): (-want +got)\n%s", file, d)
			}
			if form == "svg" {
				wellFormed(t, file, got.Bytes())
			}
		}
	}
}

func wellFormed(t *testing.T, name string, doc []byte) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(doc)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// A Service of many endpoints makes a picture that can still be looked at.
func TestManyEndpointsAreCounted(t *testing.T) {
	s := web()[:1]
	s[0].Endpoints = inspect.Endpoints{}
	all := map[netip.Addr]Place{}
	for i := range 5000 {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		all[a] = Place{fmt.Sprintf("node-%d", i/100), string(rune('a' + i/2500))}
		s[0].Endpoints.Cluster = append(s[0].Endpoints.Cluster, netip.AddrPortFrom(a, 80).String())
	}
	var out bytes.Buffer
	if err := New("default/web", s, Options{Places: all}).SVG(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"and 88 more", moreNodes, "zone a", "zone b"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the picture", want)
		}
	}
	if out.Len() > 200<<10 {
		t.Errorf("%d bytes", out.Len())
	}
}
