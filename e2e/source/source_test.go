// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package source holds proxier/kube's API source against a real API server, with no more rights than kube-proxy has.
package source

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/manifests"
)

var shared = lab.Shared{Options: lab.ControlPlaneOptions{RBAC: true}}

func TestMain(m *testing.M) {
	code := m.Run()
	shared.Close()
	os.Exit(code)
}

// sink keeps what it receives.
type sink struct {
	t       *testing.T
	mu      sync.Mutex
	objects map[kube.Ref]kube.Object
	synced  map[kube.Kind]bool
	log     []string
}

func (s *sink) do(what string, change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.log = append(s.log, what)
}

func (s *sink) Set(o kube.Object)             { s.do("set "+o.Ref().String(), func() { s.objects[o.Ref()] = o }) }
func (s *sink) Delete(r kube.Ref)             { s.do("delete "+r.String(), func() { delete(s.objects, r) }) }
func (s *sink) Synced(k kube.Kind)            { s.do("synced "+k.String(), func() { s.synced[k] = true }) }
func (s *sink) Problem(r kube.Ref, err error) { s.t.Errorf("problem of %s: %v", r, err) }

func (s *sink) until(what string, ok func() bool) {
	s.t.Helper()
	check := func() bool { s.mu.Lock(); defer s.mu.Unlock(); return ok() }
	for end := time.Now().Add(lab.HangLimit); !check(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("waited in vain for: %s\n%s", what, strings.Join(s.log, "\n"))
		}
	}
}

func (s *sink) untilSynced() {
	s.t.Helper()
	s.until("all kinds synced", func() bool { return len(s.synced) == len(kube.Kinds()) })
}

func (s *sink) has(kind kube.Kind, name string) func() bool {
	return func() bool { return s.objects[ref(kind, name)] != nil }
}

func (s *sink) lacks(kind kube.Kind, name string) func() bool {
	return func() bool { return s.objects[ref(kind, name)] == nil }
}

func (s *sink) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	log := s.log
	s.log = nil
	return log
}

func ref(kind kube.Kind, name string) kube.Ref {
	if kind == kube.KindNode || kind == kube.KindServiceCIDR {
		return kube.Ref{Kind: kind, Name: kube.Name{Name: name}}
	}
	return kube.Ref{Kind: kind, Name: kube.Name{Namespace: "default", Name: name}}
}

// start runs the source as kube-proxy's user until the test ends.
func start(t *testing.T, cfg *rest.Config) *sink {
	t.Helper()
	cfg = rest.CopyConfig(cfg)
	cfg.Impersonate.UserName = "system:kube-proxy" // bound to the role system:node-proxier by the server itself
	api, err := kube.NewAPI(func() (*rest.Config, error) { return cfg, nil }, "node-1")
	if err != nil {
		t.Fatal(err)
	}
	return run(t, api)
}

// run runs a source until the test ends.
func run(t *testing.T, source interface {
	Run(context.Context, kube.Sink)
}) *sink {
	s := &sink{t: t, objects: map[kube.Ref]kube.Object{}, synced: map[kube.Kind]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { source.Run(ctx, s) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return s
}

func node(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"topology.kubernetes.io/zone": "a"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.18.0.11"}}},
	}
}

// merge patches an object of namespace default.
func merge(t *testing.T, cp *lab.ControlPlane, resource, name, patch string) {
	t.Helper()
	var err error
	body, kind := []byte(patch), types.MergePatchType
	switch resource {
	case "services":
		_, err = cp.Client.CoreV1().Services("default").Patch(t.Context(), name, kind, body, metav1.PatchOptions{})
	case "endpointslices":
		_, err = cp.Client.DiscoveryV1().EndpointSlices("default").Patch(t.Context(), name, kind, body, metav1.PatchOptions{})
	case "nodes":
		_, err = cp.Client.CoreV1().Nodes().Patch(t.Context(), name, kind, body, metav1.PatchOptions{})
	}
	if err != nil {
		t.Fatalf("patch %s %s: %v", resource, name, err)
	}
}

func TestSourceAPI(t *testing.T) {
	lab.RequireRoot(t)
	cp := shared.ControlPlane(t)
	svc := lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080))
	if err := cp.Apply(t.Context(), lab.Objects(svc, lab.NewSlices(svc), node("node-1"), node("node-2"))...); err != nil {
		t.Fatal(err)
	}
	s := start(t, cp.Config)
	s.untilSynced()

	t.Run("what is there", func(t *testing.T) { checkFirstList(t, s) })

	t.Run("what leaves the selection is gone, and comes back", func(t *testing.T) {
		merge(t, cp, "services", "web", `{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":"other"}}}`)
		s.until("no web", s.lacks(kube.KindService, "web"))
		merge(t, cp, "services", "web", `{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":null}}}`)
		s.until("web", s.has(kube.KindService, "web"))

		merge(t, cp, "endpointslices", "web-ipv4", `{"metadata":{"labels":{"service.kubernetes.io/headless":""}}}`)
		s.until("no slice", s.lacks(kube.KindEndpointSlice, "web-ipv4"))
		merge(t, cp, "endpointslices", "web-ipv4", `{"metadata":{"labels":{"service.kubernetes.io/headless":null}}}`)
		s.until("slice", s.has(kube.KindEndpointSlice, "web-ipv4"))

		merge(t, cp, "services", "web", `{"spec":{"type":"ExternalName","externalName":"example.com","clusterIP":"","clusterIPs":null,"ipFamilies":null,"ipFamilyPolicy":null}}`)
		s.until("no ExternalName", s.lacks(kube.KindService, "web"))
		merge(t, cp, "services", "web", `{"spec":{"type":"ClusterIP","externalName":null,"clusterIP":"10.96.0.10"}}`)
		s.until("web again", s.has(kube.KindService, "web"))
	})

	t.Run("what changes nothing is swallowed", func(t *testing.T) {
		s.take()
		merge(t, cp, "services", "web", `{"metadata":{"labels":{"team":"a"},"annotations":{"note":"x"}},"spec":{"selector":{"app":"web"}}}`)
		merge(t, cp, "nodes", "node-1", `{"metadata":{"annotations":{"note":"x"}}}`)
		merge(t, cp, "nodes", "node-2", `{"metadata":{"labels":{"topology.kubernetes.io/zone":"b"}}}`)
		merge(t, cp, "endpointslices", "web-ipv6", `{"metadata":{"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"2026-01-02T03:04:05Z"}}}`)
		merge(t, cp, "nodes", "node-1", `{"metadata":{"labels":{"topology.kubernetes.io/zone":"c"}}}`)
		merge(t, cp, "services", "web", `{"spec":{"internalTrafficPolicy":"Local"}}`)
		merge(t, cp, "endpointslices", "web-ipv6", `{"ports":[{"name":"tcp-80","port":9090,"protocol":"TCP"}]}`)
		s.until("three changes", func() bool { return len(s.log) >= 3 })
		log := s.take()
		slices.Sort(log)
		if want := []string{"set EndpointSlice default/web-ipv6", "set Node node-1", "set Service default/web"}; fmt.Sprint(log) != fmt.Sprint(want) {
			t.Errorf("got %q, want %q", log, want)
		}
	})
}

// checkFirstList looks at what TestSourceAPI put into the server before the source was started.
func checkFirstList(t *testing.T, s *sink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	web, ok := s.objects[ref(kube.KindService, "web")].(*kube.Service)
	if !ok || web.ClusterIPs[0] != lab.ClusterIP(lab.IPv4, 10) || web.ClusterIPs[1] != lab.ClusterIP(lab.IPv6, 10) || web.UID == "" || web.Created == 0 {
		t.Errorf("Service web: %+v", web)
	}
	for _, r := range []kube.Ref{
		ref(kube.KindService, "kubernetes"), ref(kube.KindEndpointSlice, "kubernetes"), ref(kube.KindEndpointSlice, "web-ipv4"),
		ref(kube.KindEndpointSlice, "web-ipv6"), ref(kube.KindNode, "node-1"), ref(kube.KindServiceCIDR, "kubernetes"),
	} {
		if s.objects[r] == nil {
			t.Errorf("no %s", r)
		}
	}
	if len(s.objects) != 7 {
		t.Errorf("%d objects, want 7: %q", len(s.objects), s.log)
	}
}

// A server that cannot stream (before Kubernetes 1.34 by default) sends lists, and says the same.
func TestSourceAPIWithoutStreaming(t *testing.T) {
	lab.RequireRoot(t)
	cp, err := lab.StartControlPlane(t.Context(), lab.ControlPlaneOptions{RBAC: true, Flags: []string{"--feature-gates=WatchList=false"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cp.Close)
	svc := lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080))
	if err := cp.Apply(t.Context(), lab.Objects(svc, lab.NewSlices(svc), node("node-1"))...); err != nil {
		t.Fatal(err)
	}
	s := start(t, cp.Config)
	s.untilSynced()
	if log := s.take(); len(log) != 7+len(kube.Kinds()) {
		t.Errorf("got %q", log)
	}
	merge(t, cp, "services", "web", `{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":"other"}}}`)
	s.until("no web", s.lacks(kube.KindService, "web"))
}

// cutter is a way to the API server that can be closed.
type cutter struct {
	mu    sync.Mutex
	shut  atomic.Bool
	conns []net.Conn
	dial  func(context.Context, string, string) (net.Conn, error)
}

func (c *cutter) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if c.shut.Load() {
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	conn, err := c.dial(ctx, network, addr)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns = append(c.conns, conn)
	return conn, err
}

func (c *cutter) cut() {
	c.shut.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
}

// While the way to the server is cut nothing is said; afterwards only what has changed meanwhile.
func TestSourceAPIOutage(t *testing.T) {
	lab.RequireRoot(t)
	cp := shared.ControlPlane(t)
	web, gone := lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080)), lab.NewService("gone", 11, lab.Port(lab.TCP, 80, 8080))
	if err := cp.Apply(t.Context(), lab.Objects(web, gone, lab.NewSlices(web), lab.NewSlices(gone))...); err != nil {
		t.Fatal(err)
	}
	c := &cutter{dial: cp.Config.Dial}
	cfg := rest.CopyConfig(cp.Config)
	cfg.Dial = c.Dial
	s := start(t, cfg)
	s.untilSynced()
	s.take()

	c.cut()
	if err := cp.Delete(t.Context(), lab.Objects(gone)...); err != nil {
		t.Fatal(err)
	}
	merge(t, cp, "services", "web", `{"spec":{"internalTrafficPolicy":"Local"}}`)
	if log := s.take(); len(log) != 0 {
		t.Errorf("got, while the server was away: %q", log)
	}
	c.shut.Store(false)
	s.until("two changes", func() bool { return len(s.log) >= 2 })
	log := s.take()
	slices.Sort(log)
	if want := []string{"delete Service default/gone", "set Service default/web"}; fmt.Sprint(log) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", log, want)
	}
}

// What kubectl prints is a manifest that says the same as the API server, to the last field.
func TestSourcesAgree(t *testing.T) {
	lab.RequireRoot(t)
	cp := shared.ControlPlane(t)
	web := lab.WithExternalIP(lab.WithLoadBalancer(lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080), lab.Port(lab.UDP, 53, 5353)), 30080, 1), 1)
	local := corev1.ServiceInternalTrafficPolicyLocal
	web.Spec.ExternalTrafficPolicy, web.Spec.InternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal, &local
	web.Spec.HealthCheckNodePort = 30090
	web.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "fd00::/8"}
	web.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	plain, other := lab.NewService("plain", 11, lab.Port(lab.SCTP, 80, 8080)), lab.NewService("other", 12, lab.Port(lab.TCP, 80, 8080))
	other.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	headless := lab.NewService("headless", 13, lab.Port(lab.TCP, 80, 8080))
	headless.Spec.ClusterIP, headless.Spec.ClusterIPs = "None", []string{"None"}
	endpoints := lab.NewSlices(web)
	yes, no := true, false
	zone, host := "a", "node-1"
	for i, addr := range []string{"10.244.1.11", "fd00:244:1::11"} {
		for _, e := range endpoints {
			if strings.HasSuffix(e.Name, []string{"ipv4", "ipv6"}[i]) {
				e.Endpoints = append(e.Endpoints,
					discoveryv1.Endpoint{Addresses: []string{addr}, NodeName: &host, Zone: &zone, Hints: &discoveryv1.EndpointHints{
						ForZones: []discoveryv1.ForZone{{Name: zone}}, ForNodes: []discoveryv1.ForNode{{Name: host}}}},
					discoveryv1.Endpoint{Addresses: []string{addr + "2"}, Conditions: discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}})
			}
		}
	}
	err := cp.Apply(t.Context(), lab.Objects(web, plain, other, headless, endpoints, lab.NewSlices(plain), lab.NewSlices(other), node("node-1"), node("node-2"))...)
	if err != nil {
		t.Fatal(err)
	}
	api := start(t, cp.Config)
	api.untilSynced()
	// Services kubernetes, web and plain; a slice of kubernetes, two of each other; the Node and the ServiceCIDR.
	if n := strings.Count(api.state(), "\n") + 1; n != 3+7+1+1 {
		t.Errorf("%d objects:\n%s", n, api.state())
	}
	for _, format := range []string{"yaml", "json"} {
		text, err := cp.Kubectl("get", "services,endpointslices.discovery.k8s.io,nodes,servicecidrs.networking.k8s.io", "--all-namespaces", "--show-managed-fields", "--output="+format)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "all."+format), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		source, err := manifests.New(dir, "node-1")
		if err != nil {
			t.Fatal(err)
		}
		files := run(t, source)
		files.untilSynced()
		if a, f := api.state(), files.state(); a != f {
			t.Errorf("%s: the API server says\n%s\nthe manifest says\n%s", format, a, f)
		}
	}
}

// state describes all objects.
func (s *sink) state() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []string
	for _, o := range s.objects {
		lines = append(lines, describe(o))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// describe writes an object with all that it refers to.
func describe(o kube.Object) string {
	switch o := o.(type) {
	case *kube.Service:
		return fmt.Sprintf("Service %+v", *o)
	case *kube.EndpointSlice:
		text := fmt.Sprintf("EndpointSlice %+v", *o)
		for _, e := range o.Endpoints {
			text += fmt.Sprintf(" hints %t %t %t %t", e.Hints.HasZones(), e.Hints.HasNodes(), e.Hints.ForZone("a"), e.Hints.ForNode("node-1"))
		}
		return text
	case *kube.Node:
		return fmt.Sprintf("Node %+v", *o)
	case *kube.ServiceCIDR:
		return fmt.Sprintf("ServiceCIDR %+v", *o)
	}
	return fmt.Sprintf("%T", o)
}
