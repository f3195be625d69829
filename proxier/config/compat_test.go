// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	clientfeatures "k8s.io/client-go/features"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"
)

// compatRow is a row of docs/compatibility.md whose first cell is one name.
var compatRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (same|better|n/a) \\| ([^|]*)\\|$")

// compatRows reads the rows of one section of the page: name to verdict.
func compatRows(t *testing.T, section string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(docsDir, "compatibility.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("no section %q", section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	rows := map[string]string{}
	for _, m := range compatRow.FindAllStringSubmatch(rest, -1) {
		if rows[m[1]] != "" {
			t.Errorf("%s: two rows for %s", section, m[1])
		}
		if m[2] != "same" && strings.TrimSpace(m[3]) == "" {
			t.Errorf("%s: %s is %s, and nothing says how or why", section, m[1], m[2])
		}
		rows[m[1]] = m[2]
	}
	return rows
}

// expectRows wants exactly the given names to have rows.
func expectRows(t *testing.T, section string, names []string) {
	t.Helper()
	rows := compatRows(t, section)
	for _, n := range names {
		if rows[n] == "" {
			t.Errorf("%s: no row for %s", section, n)
		}
		delete(rows, n)
	}
	for n := range rows {
		t.Errorf("%s: a row for %s, which does not exist", section, n)
	}
}

func TestCompatibilityOfKeys(t *testing.T) {
	expectRows(t, "Configuration keys", allKeys(reflect.TypeFor[kubeproxyconfig.KubeProxyConfiguration](), ""))
}

// kubeProxyFlags are the flags that kube-proxy v1.36 lists in its help.
const kubeProxyFlags = `bind-address bind-address-hard-fail boot-id-file cleanup cluster-cidr config config-sync-period
conntrack-max-per-core conntrack-min conntrack-tcp-be-liberal conntrack-tcp-timeout-close-wait
conntrack-tcp-timeout-established conntrack-udp-timeout conntrack-udp-timeout-stream detect-local-mode feature-gates
healthz-bind-address healthz-port hostname-override init-only iptables-localhost-nodeports iptables-masquerade-bit
iptables-min-sync-period iptables-sync-period ipvs-exclude-cidrs ipvs-min-sync-period ipvs-scheduler ipvs-strict-arp
ipvs-sync-period ipvs-tcp-timeout ipvs-tcpfin-timeout ipvs-udp-timeout kube-api-burst kube-api-content-type kube-api-qps
kubeconfig log-flush-frequency log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size
log-text-split-stream logging-format machine-id-file masquerade-all master metrics-bind-address metrics-port
nodeport-addresses oom-score-adj pod-bridge-interface pod-interface-name-prefix profiling proxy-mode
show-hidden-metrics-for-version v vmodule write-config-to`

func TestCompatibilityOfFlags(t *testing.T) {
	o, fs := NewOptions(), pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	names := []string{"--version"} // the command's
	fs.VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
	expectRows(t, "Flags", names)
	rows := compatRows(t, "Flags")
	for _, name := range strings.Fields(kubeProxyFlags) {
		if fs.Lookup(name) == nil {
			t.Errorf("kube-proxy's flag --%s is not accepted", name)
		}
	}
	for name, reason := range flagsWithoutEffect {
		if reason == "" || rows["--"+name] != "n/a" {
			t.Errorf("--%s has no effect in the code (%q) and is %q on the page", name, reason, rows["--"+name])
		}
	}
}

// TestCompatibilityOfGates: every feature gate that kube-proxy reads has a row.
func TestCompatibilityOfGates(t *testing.T) {
	gates, _, err := newGates(nil)
	client := clientGates{}
	if err := errors.Join(err, clientfeatures.AddFeaturesToExistingFeatureGates(client)); err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range gates.GetAll() {
		names = append(names, string(name))
	}
	for name := range client {
		names = append(names, string(name))
	}
	expectRows(t, "Feature gates", append(names, slices.Collect(maps.Keys(gatesWithoutEffect))...))
	rows := compatRows(t, "Feature gates")
	for name := range gatesWithoutEffect {
		if rows[name] != "n/a" {
			t.Errorf("%s has no effect and is %q on the page", name, rows[name])
		}
	}
}

// TestCompatibilityOfFields: every field of the API types that a Service proxy
// could honour has a row.
func TestCompatibilityOfFields(t *testing.T) {
	names := fieldNames(reflect.TypeFor[v1.ServiceSpec](), "spec.")
	names = append(names, fieldNames(reflect.TypeFor[v1.ServicePort](), "spec.ports.")...)
	names = append(names, fieldNames(reflect.TypeFor[v1.ServiceStatus](), "status.")...)
	expectRows(t, "Service", names)
	names = []string{"addressType"}
	names = append(names, fieldNames(reflect.TypeFor[discovery.Endpoint](), "endpoints.")...)
	names = append(names, fieldNames(reflect.TypeFor[discovery.EndpointPort](), "ports.")...)
	expectRows(t, "EndpointSlice", names)
}

func fieldNames(of reflect.Type, prefix string) []string {
	var out []string
	for f := range fields(of) {
		out = append(out, prefix+jsonName(f))
	}
	return out
}

// fields iterates over the fields of a struct type.
func fields(t reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if !yield(t.Field(i)) {
				return
			}
		}
	}
}
