// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// TestEditedConfiguration: a bad edit leaves the proxy running with the configuration it has, visible in health, metrics and
// log; a good one ends it for a new start, which is not logged as an error.
func TestEditedConfiguration(t *testing.T) {
	c := fromManifests(t, lab.Options{})
	file := filepath.Join(t.TempDir(), "nftproxy.yaml")
	edit := func(settings string) {
		t.Helper()
		text := "apiVersion: nftproxy.io/v1alpha1\nkind: NFTProxyConfiguration\n" + settings
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	edit("maxElements: 1000\n")
	c.spec.Flags = append(c.spec.Flags, "--nftproxy-config="+file)
	proxy := c.start()[0]
	health := func() string {
		return lab.Must(proxy.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", lab.HealthPort)))(t) // an error unless 200
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(lab.HangLimit); !ok(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: not seen\n%s", what, proxy.Tail(10))
			}
		}
	}
	const metric = "\nnftproxy_config_last_reload_successful "
	metrics := func() string {
		return lab.Must(proxy.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", lab.MetricsPort)))(t)
	}
	edit("maxElement: 2000\nbatchWindow: 5s\n")
	until("degraded", func() bool { return strings.Contains(health(), `"degraded":["configuration: `) })
	if !strings.Contains(metrics(), metric+"0\n") {
		t.Error("the metric does not show the bad edit")
	}
	if log := proxy.Tail(100); !strings.Contains(log, "did you mean") {
		t.Errorf("the log does not name the setting:\n%s", log)
	}
	edit("maxElements: 1000\n")
	until("as before", func() bool { return !strings.Contains(health(), "degraded") })
	if !strings.Contains(metrics(), metric+"1\n") {
		t.Error("the metric does not show the end of it")
	}
	edit("maxElements: 2000\n")
	select {
	case <-proxy.Done():
	case <-time.After(lab.HangLimit):
		t.Fatal("a good edit does not end the proxy")
	}
	var exit *exec.ExitError
	if err := proxy.Stop(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("it ended with %v, want exit code 1", err)
	}
	last := proxy.Tail(3)
	if !strings.Contains(last, "to be started again with the new configuration") || strings.Contains(last, "command failed") {
		t.Errorf("the end of the log:\n%s", last)
	}
	if _, err := proxy.Restart(); err != nil {
		t.Errorf("start with the new configuration: %v", err)
	}
}

// TestForbiddenExternalIPs: kube-proxy's feature gate and our own ranges keep external IPs from being served, and nothing else.
func TestForbiddenExternalIPs(t *testing.T) {
	own := filepath.Join(t.TempDir(), "nftproxy.yaml")
	text := "apiVersion: nftproxy.io/v1alpha1\nkind: NFTProxyConfiguration\nexternalIPs: {allow: [" + lab.ExternalIP(lab.IPv4, 1).String() + "/32]}\n"
	if err := os.WriteFile(own, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, set := range map[string]struct {
		gates  map[string]bool
		flags  []string
		served map[lab.Family]bool
	}{
		"gate":  {gates: map[string]bool{"AllowServiceExternalIPs": false}},
		"range": {flags: []string{"--nftproxy-config=" + own}, served: map[lab.Family]bool{lab.IPv4: true}},
	} {
		c := fromManifests(t, lab.Options{})
		c.spec.Config, c.spec.Flags = map[string]any{"featureGates": set.gates}, append(c.spec.Flags, set.flags...)
		pod := c.Pod(1, 1)
		c.serve(8080, []*lab.Pod{pod}, lab.TCP)
		svc := lab.WithExternalIP(lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080)), 1)
		c.apply(svc, lab.NewSlices(svc, pod.Endpoint()))
		c.start()
		for _, f := range lab.Families() {
			from := c.Client(1).Host
			c.eventually("ClusterIP", lab.Probe{From: c.Node(1).Host, Proto: lab.TCP, To: at(lab.ClusterIP(f, 10), 80)}, isAnswered)
			if r := from.Ask(lab.TCP, at(lab.ExternalIP(f, 1), 80)); (r.Verdict == lab.Answered) != set.served[f] {
				t.Errorf("%s: external IP %s: %s", what, lab.ExternalIP(f, 1), r)
			}
		}
	}
}
