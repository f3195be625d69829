// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// shared gives the proxies kube-proxy's role and nothing more.
var shared = lab.Shared{Options: lab.ControlPlaneOptions{RBAC: true}}

func TestMain(m *testing.M) {
	code := m.Run()
	shared.Close()
	os.Exit(code)
}

// pair is a cluster of two nodes, of which the first runs nftproxy and the
// second real kube-proxy.
type pair struct {
	*lab.Net
	cp           *lab.ControlPlane
	ours, theirs *lab.Proxy
}

func startPair(t *testing.T, overlay map[string]any) *pair {
	t.Helper()
	lab.RequireRoot(t)
	p := &pair{Net: lab.Start(t, lab.Options{}), cp: shared.ControlPlane(t)}
	api := lab.Must(p.Attach(p.cp))(t)
	for _, node := range p.Nodes {
		p.apply(t, lab.NewNode(node))
	}
	start := func(i int, kind lab.ProxyKind) *lab.Proxy {
		return lab.Must(lab.StartProxy(p.Node(i), lab.ProxySpec{Kind: kind, API: api, Config: overlay}))(t)
	}
	p.ours, p.theirs = start(1, lab.NFTProxy), start(2, lab.KubeProxy)
	return p
}

func (p *pair) apply(t *testing.T, parts ...any) {
	t.Helper()
	if err := p.cp.Apply(t.Context(), lab.Objects(parts...)...); err != nil {
		t.Fatal(err)
	}
}

// answer is what a server says.
type answer struct {
	Status int
	Header http.Header
	Body   string
}

// ask asks from inside a node.
func ask(t *testing.T, node *lab.Node, method, url, body string) (answer, error) {
	t.Helper()
	client := http.Client{Timeout: lab.DefaultTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
			err = node.Do(func() (err error) {
				var d net.Dialer
				c, err = d.DialContext(ctx, network, addr)
				return err
			})
			return c, err
		},
	}}
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(text)}, err
}

// both asks both proxies, each on its own node, until they answer with the
// wanted status, and returns the answers.
func (p *pair) both(t *testing.T, method, url, body string, status int) (ours, theirs answer) {
	t.Helper()
	until := time.Now().Add(lab.HangLimit)
	for {
		o, errO := ask(t, p.Node(1), method, url, body)
		k, errK := ask(t, p.Node(2), method, url, body)
		if errO == nil && errK == nil && o.Status == status && k.Status == status {
			return o, k
		}
		if time.Now().After(until) {
			t.Fatalf("%s %s: want status %d of both; we: %d %s %v; kube-proxy: %d %s %v", method, url, status, o.Status, o.Body, errO, k.Status, k.Body, errK)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

const metricsURL = "http://127.0.0.1:10249"

// TestServersLikeKubeProxy: what both proxies say over HTTP and in Events, side
// by side. One cluster for all, since starting one takes longest.
func TestServersLikeKubeProxy(t *testing.T) {
	p := startPair(t, map[string]any{"enableProfiling": true})
	t.Run("pages", p.pages)
	t.Run("configz", p.configz)
	t.Run("metrics", p.metrics)
	t.Run("health check ports", p.healthCheckPorts)
	t.Run("events", p.eventsAppear)
	t.Run("healthz", p.healthz) // last: it makes the nodes ineligible
}

// pages: those of the metrics server that need no comparison in parts.
func (p *pair) pages(t *testing.T) {
	for _, path := range []string{"/healthz", "/proxyMode"} {
		if o, k := p.both(t, http.MethodGet, metricsURL+path, "", 200); o.Body != k.Body {
			t.Errorf("%s: %q, kube-proxy %q", path, o.Body, k.Body)
		}
	}
	for _, path := range []string{"/metrics/slis", "/statusz", "/flagz", "/debug/pprof/", "/debug/pprof/goroutine?debug=1"} {
		p.both(t, http.MethodGet, metricsURL+path, "", 200)
	}
	p.both(t, http.MethodGet, metricsURL+"/nothing", "", 404)
	if o, k := p.both(t, http.MethodPut, metricsURL+"/debug/flags/v", "3", 200); o.Body != k.Body {
		t.Errorf("verbosity: %q, kube-proxy %q", o.Body, k.Body)
	}
	p.both(t, http.MethodPut, metricsURL+"/debug/flags/v", "much", 400)
	p.both(t, http.MethodGet, metricsURL+"/debug/flags/v", "", 406)
}

// configz: the same document, but for what level takes out.
func (p *pair) configz(t *testing.T) {
	o, k := p.both(t, http.MethodGet, metricsURL+"/configz", "", 200)
	document := func(a answer) *kubeproxyconfig.KubeProxyConfiguration {
		var docs map[string]json.RawMessage
		var doc kubeproxyconfig.KubeProxyConfiguration
		err := json.Unmarshal([]byte(a.Body), &docs)
		if err == nil {
			err = json.Unmarshal(docs["kubeproxy.config.k8s.io"], &doc)
		}
		if err != nil {
			t.Fatalf("/configz: %v in %s", err, a.Body)
		}
		doc.HostnameOverride, doc.NodePortAddresses = "", nil // differ by node
		return level(&doc)
	}
	if d := cmp.Diff(document(k), document(o)); d != "" {
		t.Errorf("/configz (-kube-proxy +ours):\n%s", d)
	}
}

// healthz: the same keys and types, and one more of ours; by the eligibility of
// the nodes, 200 or 503. Beside 503 our "healthy" is false.
func (p *pair) healthz(t *testing.T) {
	shape := func(a answer) map[string]string {
		var body map[string]any
		if err := json.Unmarshal([]byte(a.Body), &body); err != nil {
			t.Fatalf("%v in %s", err, a.Body)
		}
		out := map[string]string{}
		flatten(out, "", body)
		return out
	}
	check := func(path string, status int) {
		t.Helper()
		o, k := p.both(t, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", lab.HealthPort, path), "", status)
		got, want := shape(o), shape(k)
		want["synced"], want["healthy"] = "true", fmt.Sprint(status == 200)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s %d (-kube-proxy +ours):\n%s", path, status, d)
		}
		for _, h := range []string{"Content-Type", "X-Content-Type-Options"} {
			if o.Header.Get(h) != k.Header.Get(h) {
				t.Errorf("%s: %s is %q, kube-proxy %q", path, h, o.Header.Get(h), k.Header.Get(h))
			}
		}
	}
	check("/healthz", 200)
	check("/livez", 200)
	var tainted []any
	for _, n := range p.Nodes {
		node := lab.NewNode(n)
		node.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
		tainted = append(tainted, node)
	}
	p.apply(t, tainted...)
	check("/healthz", 503)
	check("/livez", 200)
}

// flatten writes every leaf of a JSON value: booleans as they are, anything
// else by its type, and times as such.
func flatten(out map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			flatten(out, strings.TrimPrefix(path+"."+key, "."), value)
		}
	case bool:
		out[path] = fmt.Sprint(v)
	case string:
		out[path] = "string"
		if _, err := time.Parse(time.RFC3339Nano, v); err == nil {
			out[path] = "time"
		}
	default:
		out[path] = fmt.Sprintf("%T", v)
	}
}

// metrics: every metric of kube-proxy with its type, labels and buckets. What
// kube-proxy has no series of yet cannot be compared; proxier/metrics holds it.
func (p *pair) metrics(t *testing.T) {
	p.apply(t, lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080)))
	// The last of kube-proxy's series to appear is that of a partial sync.
	const last = "kubeproxy_sync_partial_proxy_rules_duration_seconds"
	var ours, theirs map[string]string
	for until := time.Now().Add(lab.HangLimit); theirs[last] == ""; time.Sleep(50 * time.Millisecond) {
		o, k := p.both(t, http.MethodGet, metricsURL+"/metrics", "", 200)
		ours, theirs = describe(t, o.Body), describe(t, k.Body)
		if time.Now().After(until) {
			t.Fatalf("kube-proxy does not serve %s", last)
		}
	}
	for name, want := range theirs {
		if strings.HasPrefix(name, "kubeproxy_") && ours[name] != want {
			t.Errorf("%s: %q, kube-proxy %q", name, ours[name], want)
		}
	}
	for name := range ours {
		if strings.HasPrefix(name, "kubeproxy_") && theirs[name] == "" {
			t.Logf("%s is not served by kube-proxy yet", name)
		}
	}
	for _, name := range []string{"rest_client_requests_total", "rest_client_request_duration_seconds", "go_goroutines",
		"process_cpu_seconds_total", "kubernetes_build_info"} {
		if ours[name] != theirs[name] || ours[name] == "" {
			t.Errorf("%s: %q, kube-proxy %q", name, ours[name], theirs[name])
		}
	}
}

// describe makes a line of each metric: type, labels, buckets.
func describe(t *testing.T, text string) map[string]string {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for name, f := range families {
		out[name] = f.GetType().String() + labelsAndBuckets(f.GetMetric()[0])
	}
	return out
}

func labelsAndBuckets(m *dto.Metric) string {
	var labels []string
	for _, l := range m.GetLabel() {
		labels = append(labels, l.GetName())
	}
	slices.Sort(labels)
	text := fmt.Sprintf(" %v", labels)
	for _, b := range m.GetHistogram().GetBucket() {
		text += fmt.Sprintf(" %g", b.GetUpperBound())
	}
	return text
}

// healthCheckPorts: the health check port of a Service on both nodes, as
// endpoints come and go.
func (p *pair) healthCheckPorts(t *testing.T) {
	svc := lab.WithLoadBalancer(lab.NewService("lb", 20, lab.Port(lab.TCP, 80, 8080)), 30090, 20)
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	svc.Spec.HealthCheckNodePort = 31000
	on := func(pods ...int) (out []lab.Endpoint) {
		for _, i := range pods {
			out = append(out, p.Pod(1, i).Endpoint(), p.Pod(2, i).Endpoint())
		}
		return out
	}
	for _, step := range []struct {
		name      string
		endpoints []lab.Endpoint
		weight    string
	}{
		{"two ready endpoints each", on(1, 2), "2"},
		{"one each", on(1), "1"},
		{"one each that only terminates", []lab.Endpoint{p.Pod(1, 1).Endpoint().With(false, true, true), p.Pod(2, 1).Endpoint().With(false, true, true)}, "0"},
		{"none", nil, "0"},
		{"back", on(1, 2), "2"},
	} {
		p.apply(t, svc, lab.NewSlices(svc, step.endpoints...))
		for _, f := range lab.Families() {
			p.weight(t, step.name, f, step.weight)
		}
	}
}

// weight waits until both say the weight, and compares all else they say.
func (p *pair) weight(t *testing.T, name string, f lab.Family, weight string) {
	t.Helper()
	const header = "X-Load-Balancing-Endpoint-Weight"
	get := func(i int) answer {
		until := time.Now().Add(lab.HangLimit)
		for {
			a, err := ask(t, p.Node(i), http.MethodGet, "http://"+p.Node(i).At(f, 31000).String()+"/healthz", "")
			if err == nil && a.Header.Get(header) == weight || time.Now().After(until) {
				if err != nil {
					t.Errorf("%s, %v, node %d: %v", name, f, i, err)
				}
				return a
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	o, k := get(1), get(2)
	var bodyO, bodyK map[string]any
	if err := json.Unmarshal([]byte(o.Body), &bodyO); err != nil {
		t.Errorf("%s: %v in %q", name, err, o.Body)
	}
	if err := json.Unmarshal([]byte(k.Body), &bodyK); err != nil {
		t.Errorf("%s: kube-proxy: %v in %q", name, err, k.Body)
	}
	if d := cmp.Diff(bodyK, bodyO); d != "" || o.Status != k.Status || o.Header.Get(header) != k.Header.Get(header) || o.Header.Get(header) != weight {
		t.Errorf("%s, %v: status %d, kube-proxy %d; weight %q, kube-proxy %q, want %s; (-kube-proxy +ours):\n%s",
			name, f, o.Status, k.Status, o.Header.Get(header), k.Header.Get(header), weight, d)
	}
}

// eventsAppear: both announce themselves at their Node, and a health check port
// that is taken at the Service, with no more rights than kube-proxy's.
func (p *pair) eventsAppear(t *testing.T) {
	for _, n := range p.Nodes {
		l := lab.Must(listenIn(n, "0.0.0.0:31001"))(t)
		t.Cleanup(func() { _ = l.Close() })
	}
	svc := lab.WithLoadBalancer(lab.NewService("taken", 21, lab.Port(lab.TCP, 80, 8080)), 30091, 21)
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	svc.Spec.HealthCheckNodePort = 31001
	p.apply(t, svc, lab.NewSlices(svc, p.Pod(1, 1).Endpoint()))
	want := []string{
		"Normal Starting StartKubeProxy Node " + p.Node(1).Name + " by nftproxy",
		"Normal Starting StartKubeProxy Node " + p.Node(2).Name + " by kube-proxy",
		"Warning FailedToStartServiceHealthcheck Listen Service taken by kube-proxy",
		"Warning FailedToStartServiceHealthcheck Listen Service taken by nftproxy",
	}
	until := time.Now().Add(lab.HangLimit)
	for {
		got := p.events(t)
		if !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(got, w) }) {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("Events (-want +got):\n%s", cmp.Diff(want, got))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// events lists the Events of the test, each kind once.
func (p *pair) events(t *testing.T) []string {
	t.Helper()
	list, err := p.cp.Client.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list.Items {
		if time.Since(e.EventTime.Time) < 10*time.Minute {
			out = append(out, fmt.Sprintf("%s %s %s %s %s by %s", e.Type, e.Reason, e.Action, e.Regarding.Kind, e.Regarding.Name, e.ReportingController))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// listenIn listens inside a node.
func listenIn(n *lab.Node, addr string) (l net.Listener, err error) {
	err = n.Do(func() error {
		l, err = net.Listen("tcp4", addr)
		return err
	})
	return l, err
}
