// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	clientfeatures "k8s.io/client-go/features"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	metricsfeatures "k8s.io/component-base/metrics/features"
	zpagesfeatures "k8s.io/component-base/zpages/features"
	"k8s.io/klog/v2"
)

// Gates are the feature gates that have an effect: every gate that kube-proxy v1.36 or v1.37 reads is one of them, or
// in gatesWithoutEffect. docs/compatibility.md has a row for each.
type Gates struct {
	featuregate.MutableVersionedFeatureGate
	client map[clientfeatures.Feature]bool // those of client-go that were set
}

// The gates of k8s.io/kubernetes (pkg/features, which cannot be imported). A locked gate cannot be switched off:
// kube-proxy refuses that too.
const allowServiceExternalIPs featuregate.Feature = "AllowServiceExternalIPs" // KEP-5707

func kubeProxyGates() map[featuregate.Feature]featuregate.FeatureSpec {
	locked := featuregate.FeatureSpec{Default: true, LockToDefault: true, PreRelease: featuregate.GA}
	return map[featuregate.Feature]featuregate.FeatureSpec{
		allowServiceExternalIPs:         {Default: true, PreRelease: featuregate.GA},
		"MultiCIDRServiceAllocator":     locked, // ServiceCIDR objects are always read
		"NFTablesProxyMode":             locked,
		"PreferSameTrafficDistribution": locked, // forNodes hints are always followed
	}
}

// gatesWithoutEffect are gates that kube-proxy reads and that switch nothing here, with the reason.
var gatesWithoutEffect = map[string]string{
	"KubeProxyIPVS":                       reasonIPVS,
	"KubeProxyNFTablesLocalhostNodePorts": "the keyword localhost in nodePortAddresses is enough",
	"NFTablesNetlink":                     "nftproxy uses nothing but netlink",
	"WinDSR":                              reasonWindows,
	"WinOverlay":                          reasonWindows,
}

// newGates sets the given gates. A gate that kube-proxy does not read is a warning, because distributions pass all
// gates of a cluster to every component, unless it looks like a misspelt one: AllowServiceExternalIP=false must not
// leave external IPs open.
func newGates(given map[string]bool) (Gates, []string, error) {
	gates := featuregate.NewFeatureGate()
	g := Gates{gates, map[clientfeatures.Feature]bool{}}
	client := clientGates{}
	if err := errors.Join(logsapi.AddFeatureGates(g), zpagesfeatures.AddFeatureGates(g), metricsfeatures.AddFeatureGates(g),
		g.Add(kubeProxyGates()), clientfeatures.AddFeaturesToExistingFeatureGates(client)); err != nil {
		return g, nil, fmt.Errorf("register feature gates: %w", err) // two libraries with a gate of one name
	}
	known := slices.Sorted(maps.Keys(gatesWithoutEffect))
	for name := range g.GetAll() {
		known = append(known, string(name))
	}
	for name := range client {
		known = append(known, string(name))
	}
	effective := map[string]bool{}
	var warnings []string
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(given)) {
		_, exists := g.GetAll()[featuregate.Feature(name)]
		spec, ofClient := client[clientfeatures.Feature(name)]
		near := nearest(name, known, 2)
		switch {
		case exists:
			effective[name] = given[name]
		case ofClient && spec.LockToDefault && given[name] != spec.Default:
			wrong = append(wrong, fmt.Errorf(kubeKind+".featureGates: %s is locked to %t", name, spec.Default))
		case ofClient:
			g.client[clientfeatures.Feature(name)] = given[name]
		case gatesWithoutEffect[name] != "":
			warnings = append(warnings, fmt.Sprintf("feature gate %s has no effect: %s", name, gatesWithoutEffect[name]))
		case near != "":
			wrong = append(wrong, fmt.Errorf(kubeKind+".featureGates: unknown gate %s (did you mean %s?)", name, near))
		default:
			warnings = append(warnings, fmt.Sprintf("feature gate %s has no effect: kube-proxy does not read it", name))
		}
	}
	if err := gates.SetFromMapWithLogger(klog.Logger{}, effective); err != nil {
		wrong = append(wrong, fmt.Errorf(kubeKind+".featureGates: %w", err))
	}
	return g, warnings, errors.Join(wrong...)
}

// Flagz and Statusz report whether these pages are served.
func (g Gates) Flagz() bool   { return g.Enabled(zpagesfeatures.ComponentFlagz) }
func (g Gates) Statusz() bool { return g.Enabled(zpagesfeatures.ComponentStatusz) }

// Apply makes the gates of component-base's metrics and of client-go effective, and shows all gates as
// kubernetes_feature_enabled. It changes globals of those libraries: call it once, before any metric or client is made.
func (g Gates) Apply() {
	metricsfeatures.ApplyFeatureGates(g)
	clientfeatures.ReplaceFeatureGates(clientOverride{clientfeatures.FeatureGates(), g.client})
	g.AddMetrics()
}

// clientOverride are client-go's gates (its defaults, changed by environment variables), of which those that were set
// have another value.
type clientOverride struct {
	clientfeatures.Gates
	set map[clientfeatures.Feature]bool
}

// Enabled implements clientfeatures.Gates.
func (o clientOverride) Enabled(name clientfeatures.Feature) bool {
	if on, ok := o.set[name]; ok {
		return on
	}
	return o.Gates.Enabled(name)
}

// clientGates collects the gates that client-go registers.
type clientGates map[clientfeatures.Feature]clientfeatures.FeatureSpec

// Add implements clientfeatures.Registry.
func (c clientGates) Add(specs map[clientfeatures.Feature]clientfeatures.FeatureSpec) error {
	maps.Copy(c, specs)
	return nil
}
