// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
)

// TestMigratePage runs the commands of docs/migrate.md, in their order, in a cluster of two nodes under load: in and back,
// from either mode of kube-proxy.
func TestMigratePage(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) { migrate(t, mode) })
	}
}

func migrate(t *testing.T, mode string) {
	c := fromAPI(t, lab.Options{PodsPerNode: 2})
	for _, n := range c.Nodes {
		c.apply(lab.NewNode(n, corev1.LabelOSStable, "linux"))
	}
	svc := lab.WithNodePorts(lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080), lab.Port(lab.UDP, 80, 8080)), 30080)
	c.apply(svc, lab.NewSlices(svc, endpoints(c.pods()...)...))
	c.serve(8080, c.pods(), lab.TCP, lab.UDP)
	m := &move{cluster: c, mode: mode, page: commands(t)}
	m.startDaemons()

	stop := m.load()
	m.run(m.page.in) // to the last line: all nodes
	for _, n := range c.Nodes {
		m.settled(n, "table ip nftproxy", "table ip6 nftproxy")
	}
	m.stillThere("moved in")
	// What the page says about the setting that kube-proxy leaves.
	wantLocalnet := map[string]string{"nftables": "0", "iptables": "1"}[mode]
	if got := lab.Must(c.Node(1).ReadSysctl("ipv4/conf/all/route_localnet"))(t); strings.TrimSpace(got) != wantLocalnet {
		t.Errorf("route_localnet is %q after %s mode", got, mode)
	}
	m.changes("by nftproxy")
	m.run(m.page.out)
	for _, n := range c.Nodes {
		m.settled(n, map[string]string{"nftables": "table ip kube-proxy", "iptables": "KUBE-SVC-"}[mode])
	}
	m.stillThere("moved back")
	m.changes("by kube-proxy")
	stop()
}

// move is a cluster on its way.
type move struct {
	*cluster
	mode string
	page page
	kept []*keptFlow
}

// keptFlow is a connection that must stay where it is.
type keptFlow struct {
	lab.Probe
	*lab.Conn
}

// page are the commands of docs/migrate.md.
type page struct{ in, out []string }

// commands reads the page. The last section is for nodes without DaemonSets.
func commands(t *testing.T) page {
	t.Helper()
	text, err := os.ReadFile("../docs/migrate.md")
	if err != nil {
		t.Fatal(err)
	}
	section := func(from, to string) (lines []string) {
		_, part, ok1 := strings.Cut(string(text), "\n## "+from+"\n")
		part, _, ok2 := strings.Cut(part, "\n## "+to+"\n")
		for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(part, -1) {
			lines = append(lines, strings.Split(strings.TrimSpace(block[1]), "\n")...)
		}
		if !ok1 || !ok2 || len(lines) < 5 {
			t.Fatalf("section %q: %d commands", from, len(lines))
		}
		return lines
	}
	return page{section("Moving in", "Moving back"), section("Moving back", "Without DaemonSets")}
}

// run runs commands of the page. Each must be kubectl's; where they go to a file is left out.
func (m *move) run(lines []string) {
	m.t.Helper()
	for _, line := range lines {
		line, _, _ = strings.Cut(line, " > ")
		words := strings.Fields(strings.ReplaceAll(line, "manifests/", "../manifests/"))
		if words[0] != "kubectl" {
			m.t.Fatalf("not a command of kubectl: %s", line)
		}
		// The controller has to see a change before its outcome can be waited for.
		m.observed()
		out, err := m.spec.API.ControlPlane.Kubectl(words[1:]...)
		if err != nil {
			m.t.Fatalf("%s: %v\n%s", line, err, out)
		}
		m.t.Logf("%s %s\n%s", time.Now().Format(time.StampMilli), line, strings.TrimSpace(firstLines(out, 4)))
	}
}

func firstLines(text string, n int) string {
	return strings.Join(strings.SplitAfterN(text, "\n", n+1)[:min(n, strings.Count(text, "\n")+1)], "")
}

// observed waits for two passes of the controller.
func (m *move) observed() {
	time.Sleep(100 * time.Millisecond) // five of them; kubectl rollout status waits for the rest
}

// startDaemons has kube-proxy run by a DaemonSet like kubeadm's, and waits for it.
func (m *move) startDaemons() {
	m.t.Helper()
	api := m.spec.API.ControlPlane.Client.AppsV1().DaemonSets("kube-system")
	labels := map[string]string{"k8s-app": "kube-proxy"}
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{corev1.LabelOSStable: "linux"},
					Containers:   []corev1.Container{{Name: "kube-proxy", Image: "kube-proxy"}},
				},
			},
		},
	}
	if _, err := api.Create(m.t.Context(), set, metav1.CreateOptions{}); err != nil {
		m.t.Fatal(err)
	}
	theirConfig := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"}}
	maps := m.spec.API.ControlPlane.Client.CoreV1().ConfigMaps("kube-system")
	if _, err := maps.Create(m.t.Context(), theirConfig, metav1.CreateOptions{}); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { // after the daemons have ended
		_ = api.DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
		_ = maps.Delete(context.Background(), "kube-proxy", metav1.DeleteOptions{})
	})
	theirs := lab.ProxySpec{Kind: lab.KubeProxy, API: m.spec.API, Config: map[string]any{"mode": m.mode}, NoWait: true}
	ours := m.spec
	ours.NoWait = true
	d := &daemons{t: m.t, c: m.cluster, runs: map[string]runner{
		"kube-proxy": running(theirs), "nftproxy": running(ours), "nftproxy-cleanup": cleaning,
	}}
	d.start()
	// Looked for in the ruleset, not by probes: one that came too early would leave a conntrack entry without translation, and
	// a client that gets its source port within the next two minutes would meet that.
	for _, n := range m.Nodes {
		m.kubeProxyServes(n)
	}
	for _, p := range m.probes() {
		m.eventually("kube-proxy", p, isAnswered)
	}
}

// kubeProxyServes waits until kube-proxy has written its rules on a node.
func (m *move) kubeProxyServes(n *lab.Node) {
	m.t.Helper()
	kernel := lab.Must(kernel.Open(n.FD()))(m.t)
	defer kernel.Close()
	for _, f := range nft.Families() {
		for deadline := time.Now().Add(lab.HangLimit); !lab.Must(kernel.KubeProxyServes(f))(m.t); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				m.t.Fatalf("%s: kube-proxy has no rules of %s", n, f)
			}
		}
	}
}

// process is a proxy as a pod.
type process struct{ *lab.Proxy }

func running(spec lab.ProxySpec) runner {
	return func(node *lab.Node, _ corev1.PodSpec) (instance, error) {
		p, err := lab.StartProxy(node, spec)
		return process{p}, err
	}
}

// Ready is what the readiness probe of the manifests asks for.
func (p process) Ready() bool {
	_, err := p.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", lab.HealthPort))
	return err == nil
}

// cleanup is a pod whose init container ends.
type cleanup struct{ done chan error }

// cleaning runs the init container of the DaemonSet nftproxy-cleanup with its own arguments.
func cleaning(node *lab.Node, template corev1.PodSpec) (instance, error) {
	command := template.InitContainers[0].Command
	bin, err := lab.NftproxyBinary()
	if err != nil || command[0] != "/nftproxy" {
		return nil, fmt.Errorf("command %q: %w", command, err)
	}
	o := cleanup{make(chan error, 1)}
	go func() {
		_, err := node.Run(append([]string{bin}, command[1:]...)...)
		o.done <- err
	}()
	return o, nil
}

// Ready reports that it ended well. One that failed would be tried again, and is never ready here.
func (o cleanup) Ready() bool {
	select {
	case err := <-o.done:
		o.done <- err
		return err == nil
	default:
		return false
	}
}

func (o cleanup) Stop() error { return <-o.done }

func ignorable(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) }

// probes are senders of all sorts: pods, nodes and an outside client, to ClusterIPs and NodePorts.
func (m *move) probes() (out []lab.Probe) {
	for i, f := range lab.Families() {
		node := m.Nodes[i]
		for _, proto := range []lab.Proto{lab.TCP, lab.UDP} {
			port := map[lab.Proto]uint16{lab.TCP: 30080, lab.UDP: 30081}[proto]
			out = append(out,
				lab.Probe{From: node.Pods[0].Host, Proto: proto, To: at(lab.ClusterIP(f, 10), 80)},
				lab.Probe{From: m.Nodes[1-i].Host, Proto: proto, To: at(lab.ClusterIP(f, 10), 80)},
				lab.Probe{From: m.Client(1).Host, Proto: proto, To: at(node.IP(f), port)})
		}
	}
	return out
}

// load opens connections that are kept, and connects over and over until stopped; then nothing may have failed.
func (m *move) load() (stop func()) {
	m.t.Helper()
	ctx, cancel := context.WithCancel(m.t.Context())
	m.t.Cleanup(cancel)
	tallies := make(chan *lab.Tally)
	for _, p := range m.probes() {
		m.kept = append(m.kept, &keptFlow{p, lab.Must(p.Open())(m.t)})
		go func() { tallies <- p.Storm(ctx, 1, m.watch(p)) }()
	}
	return func() {
		m.t.Helper()
		cancel()
		total := 0
		for range m.kept {
			r := <-tallies
			total += r.Total
			if !r.AllAnswered() {
				m.t.Errorf("while moving: %s %v", r, r.Bad)
			}
		}
		m.t.Logf("%d connections and datagrams while moving", total)
	}
}

// watch reports when a probe begins to fail and when it is answered again.
func (m *move) watch(p lab.Probe) func(lab.Result) {
	failing := false
	return func(r lab.Result) {
		if bad := r.Verdict != lab.Answered; bad != failing {
			failing = bad
			m.t.Logf("%s %s from %s to %s: %s", time.Now().Format(time.StampMilli), p.Proto, p.From, p.To, r)
		}
		time.Sleep(2 * time.Millisecond) // not at full speed: the proxies shall have some of the machine, too
	}
}

// stillThere asks the kept connections.
func (m *move) stillThere(when string) {
	m.t.Helper()
	for _, k := range m.kept {
		if r := k.Ping(lab.DefaultTimeout); r.Verdict != lab.Answered || r.Backend != k.Backend {
			m.t.Errorf("%s: %s from %s to %s was with %s: %s", when, k.Proto, k.From, k.To, k.Backend, r)
		}
	}
}

// settled waits until a node's ruleset has what it should of one proxy, and nothing of the other.
func (m *move) settled(n *lab.Node, want ...string) {
	m.t.Helper()
	theirs := []string{"kube-proxy {", "KUBE-SERVICES", "KUBE-SVC-", "KUBE-SEP-", "KUBE-POSTROUTING"}
	if !strings.Contains(want[0], "nftproxy") {
		theirs = []string{"nftproxy {"}
	}
	holds(m.t, n, want, theirs)
}

// changes gives another Service one endpoint, and then another: the proxies that run have to follow.
func (m *move) changes(when string) {
	m.t.Helper()
	other := lab.NewService("other", 11, lab.Port(lab.TCP, 80, 8080))
	for _, pod := range []*lab.Pod{m.Pod(1, 1), m.Pod(2, 2)} {
		m.apply(other, lab.NewSlices(other, pod.Endpoint()))
		for i, f := range lab.Families() {
			p := lab.Probe{From: m.Nodes[i].Host, Proto: lab.TCP, To: at(lab.ClusterIP(f, 11), 80)}
			m.eventually(when, p, func(r lab.Result) bool { return r.Backend == pod.Name })
		}
	}
}
