// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// ProxyKind is a Service proxy that the lab can run.
type ProxyKind string

// The kinds. kube-proxy runs in nftables mode and needs the machine's nft.
const (
	NFTProxy  ProxyKind = "nftproxy"
	KubeProxy ProxyKind = "kube-proxy"
)

// ProxySpec says how a proxy is run on a node.
type ProxySpec struct {
	Kind ProxyKind

	// One of the two sources.
	API       *API
	Manifests string // directory; nftproxy only

	// Config is laid over the KubeProxyConfiguration that mirrors the lab (see BaseConfig), key by key at the top level. The
	// same file configures either proxy.
	Config map[string]any
	// ByFlags says the same by flags, without a file and without Config.
	ByFlags bool
	// Flags are added last.
	Flags []string
	Env   []string
	// Binary replaces the default one.
	Binary string

	// Ready lists probes that must be answered before the proxy counts as ready.
	Ready []Probe
	// NoWait returns as soon as the process runs.
	NoWait bool
	// Timeout is for getting ready; 0 is 30 s.
	Timeout time.Duration
}

// Proxy is a running proxy.
type Proxy struct {
	*Process
	Node *Node
	Spec ProxySpec
}

// HealthPort is the port of /healthz and /livez, on all addresses of a node; MetricsPort that of /metrics, on its loopback.
const (
	HealthPort  = 10256
	MetricsPort = 10249
)

// BaseConfig is the KubeProxyConfiguration of a node of the lab.
func BaseConfig(node *Node) map[string]any {
	return map[string]any{
		"apiVersion":         "kubeproxy.config.k8s.io/v1alpha1",
		"kind":               "KubeProxyConfiguration",
		"mode":               "nftables",
		"hostnameOverride":   node.Name,
		"clusterCIDR":        clusterCIDRs(),
		"healthzBindAddress": fmt.Sprintf("0.0.0.0:%d", HealthPort),
		"metricsBindAddress": fmt.Sprintf("127.0.0.1:%d", MetricsPort),
		// Zero leaves nf_conntrack_max alone, which is read-only outside the first namespace.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0},
		// Lowering it takes CAP_SYS_RESOURCE, which containers lack.
		"oomScoreAdj": 0,
	}
}

func clusterCIDRs() string { return ClusterCIDR(IPv4).String() + "," + ClusterCIDR(IPv6).String() }

// StartProxy runs a proxy in a node's namespace and waits until it is ready, unless NoWait is set. It ends with the Net.
func StartProxy(node *Node, spec ProxySpec) (*Proxy, error) {
	name := string(spec.Kind) + "-" + node.Name
	argv, err := spec.argv(node)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p := &Proxy{Node: node, Spec: spec}
	log := filepath.Join(node.Net.dir, name+".log")
	p.Process, err = node.Net.launcher.spawn(node.Namespace, name, log, spec.Env, argv...)
	if err != nil {
		return nil, err
	}
	node.Net.onClose(func() { p.Kill() })
	if spec.NoWait {
		return p, nil
	}
	if err := p.WaitReady(); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}

// StartProxies runs a proxy on every node, concurrently.
func StartProxies(n *Net, spec ProxySpec) ([]*Proxy, error) {
	proxies := make([]*Proxy, len(n.Nodes))
	errs := make([]error, len(n.Nodes))
	var wg sync.WaitGroup
	for i, node := range n.Nodes {
		wg.Go(func() { proxies[i], errs[i] = StartProxy(node, spec) })
	}
	wg.Wait()
	return proxies, errors.Join(errs...)
}

// Restart starts the proxy anew after Stop or Kill, with the same specification. The old Proxy is of no use then.
func (p *Proxy) Restart() (*Proxy, error) { return StartProxy(p.Node, p.Spec) }

// argv is the command line.
func (s ProxySpec) argv(node *Node) ([]string, error) {
	bin, err := s.binary()
	if err != nil {
		return nil, err
	}
	argv := []string{bin, "-v=2"}
	switch {
	case s.Kind == KubeProxy && s.API == nil:
		return nil, errors.New("kube-proxy needs an API server")
	case s.ByFlags:
		argv = append(argv, s.baseFlags(node)...)
	default:
		file, err := s.writeConfig(node)
		if err != nil {
			return nil, err
		}
		argv = append(argv, "--config="+file)
	}
	if s.Manifests != "" {
		argv = append(argv, "--manifests="+s.Manifests)
	}
	return append(argv, s.Flags...), nil
}

// baseFlags is BaseConfig by flags.
func (s ProxySpec) baseFlags(node *Node) []string {
	flags := []string{
		"--proxy-mode=nftables",
		"--hostname-override=" + node.Name,
		"--cluster-cidr=" + clusterCIDRs(),
		fmt.Sprintf("--healthz-bind-address=0.0.0.0:%d", HealthPort),
		fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", MetricsPort),
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--oom-score-adj=0",
	}
	if s.API != nil {
		flags = append(flags, "--kubeconfig="+s.API.Kubeconfig)
	}
	return flags
}

func (s ProxySpec) binary() (string, error) {
	switch {
	case s.Binary != "":
		return s.Binary, nil
	case s.Kind == KubeProxy:
		return Peer("kube-proxy")
	case s.Kind == NFTProxy:
		return NftproxyBinary()
	}
	return "", fmt.Errorf("proxy kind %q", s.Kind)
}

func (s ProxySpec) writeConfig(node *Node) (string, error) {
	config := BaseConfig(node)
	if s.API != nil {
		config["clientConnection"] = map[string]any{"kubeconfig": s.API.Kubeconfig}
	}
	for k, v := range s.Config {
		config[k] = v
	}
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return "", fmt.Errorf("config: %w", err)
	}
	file := filepath.Join(node.Net.dir, fmt.Sprintf("%s-%s.conf", s.Kind, node.Name))
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return "", fmt.Errorf("config: %w", err)
	}
	return file, nil
}

// WaitReady waits until the proxy says it is healthy, and until what it shall serve is served: with an API server its own
// Service over IPv4, since kube-proxy is healthy before it has written a rule; and the probes of the specification.
func (p *Proxy) WaitReady() error {
	timeout := p.Spec.Timeout
	if timeout == 0 {
		timeout = HangLimit
	}
	probes := p.Spec.Ready
	if p.Spec.API != nil {
		probes = append([]Probe{{
			From: p.Node.Host, Proto: TCP, To: apiService(), Timeout: 200 * time.Millisecond, ConnectOnly: true,
		}}, probes...)
	}
	deadline := time.Now().Add(timeout)
	for {
		err := p.readiness(probes)
		if err == nil {
			return nil
		}
		if ended := p.alive(); ended != nil {
			return ended
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s not ready after %s: %w; the end of its log:\n%s", p.Name, timeout, err, p.Tail(tailLines))
		}
		time.Sleep(10 * time.Millisecond) // polled: neither proxy sends a signal
	}
}

func (p *Proxy) readiness(probes []Probe) error {
	if _, err := p.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", HealthPort)); err != nil {
		return err
	}
	for _, probe := range probes {
		if r := probe.Send(); r.Verdict != Answered {
			return fmt.Errorf("%s from %s to %s: %s", probe.Proto, probe.From, probe.To, r)
		}
	}
	return nil
}

// Get fetches a URL from inside the node's namespace: Get("http://127.0.0.1:10249/metrics"). A status other than 200 is
// an error, with the body returned all the same.
func (h *Host) Get(url string) (string, error) {
	client := http.Client{
		Timeout: DefaultTimeout,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
				err = h.Do(func() (err error) {
					var d net.Dialer
					c, err = d.DialContext(ctx, network, addr)
					return err
				})
				return c, err
			},
		},
	}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, strings.TrimSpace(string(body)))
	}
	return string(body), err
}

// Get fetches a URL from inside the proxy's node.
func (p *Proxy) Get(url string) (string, error) { return p.Node.Get(url) }
