// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"testing"
)

// Options says how large a Net is and how it is wired. Zero counts take the defaults named at the field.
type Options struct {
	Nodes       int // 2
	PodsPerNode int // 3
	Clients     int // 1: outside clients

	// NoDefaultRoute leaves nodes with routes to the node network and the pods only.
	NoDefaultRoute bool

	// BridgeNetfilter makes the pods' bridge call the IP hooks (br_netfilter) and its ports reflect frames to where they came
	// from (hairpin mode), as many clusters with a bridge CNI do. Packets to a pod of the same node are then translated while
	// they are bridged, and never routed. Without effect where the kernel lacks br_netfilter.
	BridgeNetfilter bool

	// Routed attaches each pod by a veth of its own, named veth1, veth2, ... on the node, without the bridge PodBridge.
	Routed bool
}

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		field *int
		value int
	}{{&o.Nodes, 2}, {&o.PodsPerNode, 3}, {&o.Clients, 1}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	return o
}

// Net is a network of namespaces: see the package comment for its plan. Reading the fields is safe for concurrent use.
type Net struct {
	Switch  *Host // joins nodes and clients; unreachable for addresses that do not exist
	Nodes   []*Node
	Clients []*Client

	dir      string // logs, kubeconfigs
	launcher *launcher
	mu       sync.Mutex
	closers  []func() // run in reverse
}

// Node is a Kubernetes node.
type Node struct {
	*Host
	Index   int // from 1
	PodCIDR map[Family]netip.Prefix
	Pods    []*Pod
}

// Pod is a pod on a node.
type Pod struct {
	*Host
	Node  *Node
	Index int    // from 1
	Link  string // its interface on the node
}

// Client is an outside client, on the node network.
type Client struct {
	*Host
	Index int
}

// PodBridge is the name of the bridge that pods hang from.
const PodBridge = "pods0"

// New builds a network; the caller closes it. It needs root, or CAP_NET_ADMIN and CAP_SYS_ADMIN.
func New(o Options) (*Net, error) {
	o = o.withDefaults()
	dir, err := os.MkdirTemp("", "nftproxy-lab-")
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	n := &Net{dir: dir, launcher: newLauncher()}
	n.onClose(func() { os.RemoveAll(dir) })
	n.onClose(n.launcher.close)
	if err := n.build(o); err != nil {
		n.Close()
		return nil, fmt.Errorf("lab: %w", err)
	}
	return n, nil
}

// Start is New for tests: it skips without root (fails when NFTPROXY_KERNEL=required) and closes at the end of the test.
func Start(t testing.TB, o Options) *Net {
	t.Helper()
	RequireRoot(t)
	n, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			n.logTails(t)
		}
		n.Close()
	})
	return n
}

// RequireRoot skips the test without root, or fails it when NFTPROXY_KERNEL=required.
func RequireRoot(t testing.TB) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("NFTPROXY_KERNEL") == "required":
		t.Fatal("this test makes network namespaces and needs root")
	default:
		t.Skip("this test makes network namespaces and needs root")
	}
}

// Must unwraps a result in tests: pod := lab.Must(pod.Serve("a", 80, lab.TCP))(t).
func Must[V any](v V, err error) func(testing.TB) V {
	return func(t testing.TB) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Node returns the n-th node, from 1.
func (n *Net) Node(i int) *Node { return n.Nodes[i-1] }

// Pod returns the p-th pod of the n-th node, both from 1.
func (n *Net) Pod(node, p int) *Pod { return n.Nodes[node-1].Pods[p-1] }

// Client returns the k-th outside client, from 1.
func (n *Net) Client(k int) *Client { return n.Clients[k-1] }

// Dir is a directory of this Net's own, removed on Close.
func (n *Net) Dir() string { return n.dir }

// Close ends the processes and backends started in the network, then the network. It may be called more than once.
func (n *Net) Close() {
	n.mu.Lock()
	closers := n.closers
	n.closers = nil
	n.mu.Unlock()
	// Reverse order: what was made last may use what was made before it.
	for i := len(closers) - 1; i >= 0; i-- {
		closers[i]()
	}
}

func (n *Net) onClose(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closers = append(n.closers, f)
}

// hosts makes the namespaces of a list of names, concurrently because each takes the kernel some milliseconds.
func (n *Net) hosts(names []string) ([]*Host, error) {
	hosts := make([]*Host, len(names))
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { hosts[i], errs[i] = newHost(n, name) })
	}
	wg.Wait()
	for _, h := range hosts {
		if h != nil {
			n.onClose(h.close)
		}
	}
	return hosts, errors.Join(errs...)
}
