// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/nft"
)

// wantedCluster is what the sources ask for: endpoints sorted, without numbers.
func wantedCluster() Wanted {
	w := Wanted{Config: config(), Services: cluster(), Node: node(nft.IPv4)}
	for _, s := range w.Services {
		s.AffinityIDs = [2]uint32{}
		for _, list := range [][]netip.AddrPort{s.Cluster, s.Local} {
			slices.SortFunc(list, netip.AddrPort.Compare)
		}
	}
	return w
}

// inKernel is a table that was made of the cluster with its slots in reverse, as after many changes.
func inKernel() *nft.Snapshot {
	services := cluster()
	for _, s := range services {
		s.Cluster = slices.Clone(s.Cluster)
		slices.Reverse(s.Cluster)
	}
	return nft.Model(nft.IPv4, config(), services, node(nft.IPv4))
}

func driftFrom(s *nft.Snapshot) *Drift {
	d := &Drift{}
	d.Compare(s, wantedCluster())
	return d
}

func text(t *testing.T, d *Drift) string {
	t.Helper()
	var out bytes.Buffer
	if err := DriftText(&out, d); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestOrderOfSlotsIsNoDrift(t *testing.T) {
	if d := driftFrom(inKernel()); d.Drifted {
		t.Errorf("drift:\n%s", text(t, d))
	}
}

// Whichever element is gone is told as the one that is missing, of the Service that it belongs to, and nothing else.
func TestEachMissingElementIsTold(t *testing.T) {
	shared := []nft.SetID{nft.ClusterIPs, nft.Hairpin, nft.NodePortAddresses, nft.Pods, nft.ServiceCIDRs}
	for i, e := range inKernel().Elements {
		s := inKernel()
		s.Elements = slices.Delete(s.Elements, i, i+1)
		d := driftFrom(s)
		var found []string
		for _, p := range d.ServicePorts {
			for _, x := range p.Differences {
				found = append(found, fmt.Sprintf("%s %s %s", p.Name, x.Change, x.Set))
			}
		}
		for _, x := range d.Tables[0].Differences {
			found = append(found, fmt.Sprintf("table %s %s", x.Change, x.Set))
		}
		name := e.Comment
		if name == "" {
			name = ownerIn(inKernel(), &e)
		}
		want := fmt.Sprintf("%s %s %s", name, Missing, e.Set)
		if slices.Contains(shared, e.Set) {
			want = fmt.Sprintf(" %s %s", Missing, e.Set)
		}
		if !d.Drifted || len(found) == 0 || !strings.HasSuffix(found[0], want) {
			t.Errorf("without %s %q: %q, want %q", e.Set, e.Key, found, want)
		}
		if len(found) > 1 && !slices.Contains(shared, e.Set) {
			t.Errorf("without %s %q: %d differences: %q", e.Set, e.Key, len(found), found)
		}
	}
}

// ownerIn is the name of the frontend that an element without a name is about.
func ownerIn(s *nft.Snapshot, e *nft.Element) string {
	dec := nft.NewDecoder(nft.IPv4)
	d, _ := dec.Decode(e)
	for i := range s.Elements {
		o, _ := dec.Decode(&s.Elements[i])
		if s.Elements[i].Comment != "" && o.Addr == d.Addr && o.Proto == d.Proto && o.Port == d.Port {
			return s.Elements[i].Comment
		}
	}
	return ""
}

func TestPersistingDrift(t *testing.T) {
	gone := func(set nft.SetID) *Drift {
		s := inKernel()
		s.Elements = slices.DeleteFunc(s.Elements, func(e nft.Element) bool { return e.Set == set })
		return driftFrom(s)
	}
	if d := gone(nft.Services).Persisting(gone(nft.NodePorts)); d.Drifted {
		t.Errorf("two that have nothing in common:\n%s", text(t, d))
	}
	if d := gone(nft.Services).Persisting(gone(nft.Services)); !d.Drifted || len(d.ServicePorts) == 0 {
		t.Errorf("one that stays:\n%s", text(t, d))
	}
}

// A table that is not there lacks every Service.
func TestNoTable(t *testing.T) {
	d := driftFrom(&nft.Snapshot{Content: &nft.Content{Family: nft.IPv4}})
	if len(d.ServicePorts) != len(cluster()) {
		t.Errorf("%d Service ports:\n%s", len(d.ServicePorts), text(t, d))
	}
	for _, p := range d.ServicePorts {
		if p.State != Missing {
			t.Errorf("%s is %s", p.Name, p.State)
		}
	}
	if d.Only("default", "nope", "") {
		t.Error("a Service that neither side has is found")
	}
	d = driftFrom(&nft.Snapshot{Content: &nft.Content{Family: nft.IPv4}})
	if !d.Only("default", "web", "") {
		t.Error("web is not found")
	}
	if !d.Drifted || len(d.ServicePorts) != 1 {
		t.Errorf("only web: %s", text(t, d))
	}
}

// A datum that differs has both sides, each with its sign.
func TestDriftSides(t *testing.T) {
	s := inKernel()
	i := slices.IndexFunc(s.Elements, func(e nft.Element) bool { return e.Set == nft.Endpoints })
	s.Elements[i].Data = string(slices.Replace([]byte(s.Elements[i].Data), 3, 4, 99))
	s.Elements = append(s.Elements, nft.AddrElements(nft.NodePortAddresses, nft.IPv4, []netip.Addr{netip.MustParseAddr("192.0.2.1")})...)
	got := text(t, driftFrom(s))
	for _, want := range []string{
		"\n  - endpoints tcp 10.96.0.1:80 cluster 0: 10.244.2.99:8080\n  + endpoints tcp 10.96.0.1:80 cluster 0: 10.244.2.3:8080\n",
		"\n  - nodeport-addresses 192.0.2.1\n", "- is in the kernel and should not be, + should be and is not",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
