// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// monitoring is where the alert rules and the dashboard are.
var monitoring = filepath.Join(top, "manifests", "components", "monitoring")

func read(t *testing.T, elements ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestMetricsExist: alerts and panels ask for metrics that there are. docs/compatibility.md names them all, which a test
// of package metrics holds.
func TestMetricsExist(t *testing.T) {
	page := read(t, top, "docs", "compatibility.md")
	name := regexp.MustCompile(`\b(?:kubeproxy|nftproxy)_[a-z_]+\b`)
	for _, file := range []string{"rules.yaml", "nftproxy.json"} {
		text := read(t, monitoring, file)
		found := name.FindAllString(text, -1)
		slices.Sort(found)
		found = slices.Compact(found)
		if len(found) < 6 {
			t.Errorf("%s asks for %q only", file, found)
		}
		for _, metric := range found {
			base := metric
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				base = strings.TrimSuffix(base, suffix)
			}
			if row := "| `" + base + "` |"; !strings.Contains(page, row) || strings.Contains(page, row+" n/a") {
				t.Errorf("%s: no metric %s", file, metric)
			}
		}
	}
}

// TestMonitoring: the component fits on every kustomization, and the port it names is that of the metrics server.
func TestMonitoring(t *testing.T) {
	var dashboard struct {
		Panels []struct{ Title string }
	}
	if err := json.Unmarshal([]byte(read(t, monitoring, "nftproxy.json")), &dashboard); err != nil || len(dashboard.Panels) == 0 {
		t.Errorf("dashboard: %v, %d panels", err, len(dashboard.Panels))
	}
	manifests, err := filepath.Abs(filepath.Join(top, "manifests"))
	if err != nil {
		t.Fatal(err)
	}
	for dir := range proxies(t) {
		at := t.TempDir()
		// kustomize takes relative paths only.
		to, err := filepath.Rel(at, manifests)
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("resources: [%s/%s]\ncomponents: [%s/components/monitoring]\n", to, dir, to)
		if err := os.WriteFile(filepath.Join(at, "kustomization.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r := renderAt(t, at)
		ports := r.daemonSets[0].Spec.Template.Spec.Containers[0].Ports
		if len(ports) != 1 || ports[0].Name != "metrics" || ports[0].ContainerPort != 10249 {
			t.Errorf("%s: ports %+v", dir, ports)
		}
		if got := r.daemonSets[0].Spec.Template.Labels["app.kubernetes.io/name"]; got != "nftproxy" {
			t.Errorf("%s: app.kubernetes.io/name is %q", dir, got)
		}
		main := r.daemonSets[0].Spec.Template.Spec.Containers[0]
		if !slices.Contains(main.Args, "--metrics-bind-address-override=$(NODE_IP)") ||
			!slices.ContainsFunc(main.Env, func(v corev1.EnvVar) bool {
				return v.Name == "NODE_IP" && v.ValueFrom.FieldRef.FieldPath == "status.hostIP"
			}) {
			t.Errorf("%s: metrics are served on loopback, where Prometheus cannot scrape them: %q", dir, main.Args)
		}
		// What kube-prometheus-stack selects by.
		if n := strings.Count(string(r.text), "\n    release: kube-prometheus-stack\n"); n != 2 {
			t.Errorf("%s: %d objects with the label of kube-prometheus-stack, want 2", dir, n)
		}
		for _, kind := range []string{"PodMonitor", "PrometheusRule"} {
			if !strings.Contains(string(r.text), "\nkind: "+kind+"\n") {
				t.Errorf("%s: no %s", dir, kind)
			}
		}
	}
}

// TestRunbooks: each alert has a section in docs/alerts.md, and each section an alert.
func TestRunbooks(t *testing.T) {
	rules, page := read(t, monitoring, "rules.yaml"), read(t, top, "docs", "alerts.md")
	var alerts, sections []string
	for _, block := range strings.Split(rules, "- alert: ")[1:] {
		name, _, _ := strings.Cut(block, "\n")
		alerts = append(alerts, name)
		url := "runbook_url: https://github.com/nftproxy/nftproxy/blob/main/docs/alerts.md#" + strings.ToLower(name) + "\n"
		if !strings.Contains(block, url) {
			t.Errorf("%s has no %s", name, url)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(page, -1) {
		sections = append(sections, m[1])
	}
	slices.Sort(alerts)
	slices.Sort(sections)
	if !slices.Equal(alerts, sections) {
		t.Errorf("alerts %q, sections %q", alerts, sections)
	}
}
