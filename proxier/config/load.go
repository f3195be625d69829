// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/proxier/sysctl"
)

// Machine is what Load asks of the machine. It is passed in so that the same
// flags and files give the same Config in a test.
type Machine struct {
	// Hostname returns the host name (os.Hostname). Asked only without override.
	Hostname func() (string, error)
	// ReadFile reads a configuration file (os.ReadFile).
	ReadFile func(path string) ([]byte, error)
}

// Load makes the configuration of parsed flags and of the files they name.
// fs is the flag set that AddFlags was called with. The error names every wrong
// setting, not the first only.
func (o *Options) Load(fs *pflag.FlagSet, m Machine) (*Config, error) {
	docs, err := o.read(m)
	if err != nil {
		return nil, err
	}
	warnings := append(docs.warnings, o.flagWarnings(fs)...)
	kube := docs.kube
	if kube == nil {
		kube = o.fromFlags(fs)
	} else {
		warnings = append(warnings, keyWarnings(kube)...)
		adoptSections(kube)
		setDefaults(kube)
		if err := loggingFromFlags(fs, &kube.Logging); err != nil {
			return nil, err
		}
	}
	c, err := o.resolve(kube, docs.own, m)
	if err != nil {
		return nil, err
	}
	c.Warnings = warnings
	return c, nil
}

// read reads the files that the flags name. own is never nil in the result.
func (o *Options) read(m Machine) (documents, error) {
	var docs documents
	for _, name := range []string{o.ConfigFile, o.OwnFile} {
		if name == "" {
			continue
		}
		data, err := m.ReadFile(name)
		if err != nil {
			return docs, err
		}
		d, err := decodeFile(name, data)
		if err != nil {
			return docs, err
		}
		if d.kube != nil && docs.kube != nil || d.own != nil && docs.own != nil {
			return docs, fmt.Errorf("%s and %s both have a document of the same kind", o.ConfigFile, o.OwnFile)
		}
		docs.warnings = append(docs.warnings, d.warnings...)
		if d.kube != nil {
			docs.kube = d.kube
		}
		if d.own != nil {
			docs.own = d.own
		}
	}
	if o.ConfigFile != "" && docs.kube == nil {
		return docs, fmt.Errorf("%s: no KubeProxyConfiguration in it; a file with an %s alone goes to --nftproxy-config", o.ConfigFile, OwnKind)
	}
	if docs.own == nil {
		docs.own = newOwnDocument()
	}
	return docs, nil
}

// fromFlags completes what the flags wrote, as kube-proxy does without --config.
func (o *Options) fromFlags(fs *pflag.FlagSet) *kubeproxyconfig.KubeProxyConfiguration {
	k := o.kube.DeepCopy()
	k.Mode = kubeproxyconfig.ProxyMode(o.proxyMode)
	k.DetectLocalMode = kubeproxyconfig.LocalMode(o.detectLocalMode)
	k.NFTables.MasqueradeAll = o.masqueradeAll
	if o.WriteConfigTo == "" {
		k.HealthzBindAddress = deprecatedPort(k.HealthzBindAddress, o.healthzPort)
		k.MetricsBindAddress = deprecatedPort(k.MetricsBindAddress, o.metricsPort)
	}
	if fs.Changed("iptables-sync-period") {
		k.NFTables.SyncPeriod.Duration = o.iptables.sync
	}
	if fs.Changed("iptables-min-sync-period") {
		k.NFTables.MinSyncPeriod.Duration = o.iptables.min
	}
	return k
}

// deprecatedPort applies --healthz-port or --metrics-port: 0 disables, any
// other is used for an address without a port.
func deprecatedPort(addr string, port int32) string {
	if port == 0 {
		return ""
	}
	return withPort(addr, port)
}

// adoptSections takes over settings for the mode that kube-proxy would choose
// for an empty mode (iptables), so that its configuration keeps its meaning
// where the nftables section says nothing. Call before setDefaults.
func adoptSections(k *kubeproxyconfig.KubeProxyConfiguration) {
	if k.Mode != "" {
		return
	}
	n, i := &k.NFTables, &k.IPTables
	n.MasqueradeAll = n.MasqueradeAll || i.MasqueradeAll
	if n.MasqueradeBit == nil {
		n.MasqueradeBit = i.MasqueradeBit
	}
	orDuration(&n.SyncPeriod.Duration, i.SyncPeriod.Duration)
	orDuration(&n.MinSyncPeriod.Duration, i.MinSyncPeriod.Duration)
}

// resolve validates both documents and makes the Config.
func (o *Options) resolve(k *kubeproxyconfig.KubeProxyConfiguration, own *NFTProxyConfiguration, m Machine) (*Config, error) {
	ownParsed, errs := parseOwn(own)
	errs = append(validateKube(k), errs...)
	errs = append(errs, logsapi.Validate(&k.Logging, LoggingGates(k.FeatureGates), field.NewPath("KubeProxyConfiguration", "logging"))...)
	if len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	node, err := o.nodeName(k, m)
	if err != nil {
		return nil, err
	}
	settle(k)
	if o.hostnameOverride != "" {
		k.HostnameOverride = node
	}
	c := &Config{
		NodeName:         node,
		Client:           o.client(k),
		Manifests:        o.manifests,
		ConfigSyncPeriod: k.ConfigSyncPeriod.Duration,
		MasqueradeBit:    int(*k.NFTables.MasqueradeBit),
		MasqueradeAll:    k.NFTables.MasqueradeAll,
		DetectLocal:      detectLocal(k),
		NodePorts:        nodePorts(k.NodePortAddresses, own.LocalhostNodePorts),
		SyncPeriod:       k.NFTables.SyncPeriod.Duration,
		MinSyncPeriod:    k.NFTables.MinSyncPeriod.Duration,
		Healthz:          Bind{k.HealthzBindAddress}, Metrics: Bind{k.MetricsBindAddress},
		BindHardFail: k.BindAddressHardFail, Profiling: k.EnableProfiling,
		ShowHiddenMetricsFor: k.ShowHiddenMetricsForVersion,
		Conntrack:            conntrack(k.Conntrack),
		FeatureGates:         k.FeatureGates,
		Logging:              k.Logging,
		Own:                  ownParsed,
		External:             k,
		OwnExternal:          own,
	}
	orString(&c.Manifests, own.Manifests)
	own.Manifests, own.Routing = c.Manifests, ownParsed.Routing
	if a, ok := parseAddr(k.BindAddress); ok && !a.IsUnspecified() {
		c.NodeIP = a
	}
	score := int(*k.OOMScoreAdj)
	c.OOMScoreAdj = &score
	return c, nil
}

// settle writes into the document what the run decided, so that /configz and
// --write-config-to show it.
func settle(k *kubeproxyconfig.KubeProxyConfiguration) {
	k.SetGroupVersionKind(kubeproxyconfig.SchemeGroupVersion.WithKind("KubeProxyConfiguration"))
	k.Mode = modeNFTables
	if len(k.NodePortAddresses) == 0 {
		k.NodePortAddresses = []string{keywordPrimary}
	}
	if k.DetectLocalMode == "" {
		k.DetectLocalMode = kubeproxyconfig.LocalMode(LocalByClusterCIDR)
	}
	k.PortRange = "" // ignored, and not shown as if it were not
}

// nodeName is --hostname-override, else the file's, else the host name.
func (o *Options) nodeName(k *kubeproxyconfig.KubeProxyConfiguration, m Machine) (string, error) {
	name := k.HostnameOverride
	if o.hostnameOverride != "" {
		name = o.hostnameOverride
	}
	if name == "" {
		host, err := m.Hostname()
		if err != nil {
			return "", fmt.Errorf("host name: %w", err)
		}
		name = host
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "" {
		return "", errors.New("the name of the node is empty: set --hostname-override")
	}
	return name, nil
}

func (o *Options) client(k *kubeproxyconfig.KubeProxyConfiguration) Client {
	c := k.ClientConnection
	return Client{
		Kubeconfig: c.Kubeconfig, Master: o.master,
		ContentType: c.ContentType, AcceptContentTypes: c.AcceptContentTypes,
		QPS: c.QPS, Burst: int(c.Burst),
	}
}

// detectLocal parses the detector; validation has seen it before.
func detectLocal(k *kubeproxyconfig.KubeProxyConfiguration) DetectLocal {
	d := DetectLocal{Mode: LocalMode(k.DetectLocalMode)}
	switch d.Mode {
	case LocalByClusterCIDR:
		for _, s := range splitCIDRs(k.ClusterCIDR) {
			if p, ok := parsePrefix(s); ok {
				d.CIDRs = append(d.CIDRs, p)
			}
		}
	case LocalByBridge:
		d.Interface = k.DetectLocal.BridgeInterface
	case LocalByPrefix:
		d.Interface = k.DetectLocal.InterfaceNamePrefix
	case LocalByNodeCIDR:
	}
	return d
}

// nodePorts parses the list; validation has seen it before. Ranges inside the
// loopback networks ask for localhost.
func nodePorts(list []string, localhost bool) NodePortAddresses {
	n := NodePortAddresses{Localhost: localhost}
	for _, s := range list {
		switch s {
		case keywordPrimary:
			n.Primary = true
		case keywordLocalhost:
			n.Localhost = true
		case keywordAll:
			n.All = true
		default:
			n.addCIDR(s)
		}
	}
	return n
}

func (n *NodePortAddresses) addCIDR(s string) {
	p, ok := parsePrefix(s)
	switch {
	case !ok || slices.Contains(n.CIDRs, p):
	case p.Addr().IsLoopback() && loopbackOnly(p):
		n.Localhost = true
	default:
		n.CIDRs = append(n.CIDRs, p)
	}
}

// loopbackOnly reports whether a prefix that begins with a loopback address
// has no other: 127.0.0.0/8 and longer, ::1/128.
func loopbackOnly(p netip.Prefix) bool {
	if p.Addr().Is6() {
		return p.Bits() == 128
	}
	return p.Bits() >= 8
}

func conntrack(ct kubeproxyconfig.KubeProxyConntrackConfiguration) sysctl.Conntrack {
	return sysctl.Conntrack{
		MaxPerCore: int(*ct.MaxPerCore), Min: int(*ct.Min),
		TCPEstablished: ct.TCPEstablishedTimeout.Duration, TCPCloseWait: ct.TCPCloseWaitTimeout.Duration,
		TCPBeLiberal: ct.TCPBeLiberal,
		UDP:          ct.UDPTimeout.Duration, UDPStream: ct.UDPStreamTimeout.Duration,
	}
}

// loggingFromFlags lets logging flags win over the file, so that
// `--config F -v 4` does what it says.
func loggingFromFlags(fs *pflag.FlagSet, to *logsapi.LoggingConfiguration) error {
	var own pflag.FlagSet
	fromFile := to.VModule
	to.VModule = nil
	logsapi.AddFlags(to, &own)
	var errs []error
	own.VisitAll(func(f *pflag.Flag) {
		if given := fs.Lookup(f.Name); given != nil && given.Changed {
			errs = append(errs, f.Value.Set(given.Value.String()))
		}
	})
	// The flag's patterns come first: the first that fits wins.
	to.VModule = append(to.VModule, fromFile...)
	return errors.Join(errs...)
}

// LoggingGates are the feature gates of component-base's logging, set by those
// of the given gates that it knows. kube-proxy's other gates switch nothing here.
func LoggingGates(given map[string]bool) featuregate.FeatureGate {
	gates := featuregate.NewFeatureGate()
	if err := logsapi.AddFeatureGates(gates); err != nil {
		// Only a second registration of a name fails, and this is the first.
		panic(err)
	}
	known := gates.GetAll()
	for name, on := range given {
		if spec, ok := known[featuregate.Feature(name)]; ok && !spec.LockToDefault {
			_ = gates.SetFromMap(map[string]bool{name: on}) // known and not locked: cannot fail
		}
	}
	return gates
}

// flagWarnings names the flags that were given and mean nothing.
func (o *Options) flagWarnings(fs *pflag.FlagSet) []string {
	var logging pflag.FlagSet
	logsapi.AddFlags(logsapi.NewLoggingConfiguration(), &logging)
	var out []string
	fs.Visit(func(f *pflag.Flag) {
		switch reason, useless := flagsWithoutMeaning[f.Name]; {
		case useless:
			out = append(out, fmt.Sprintf("flag --%s has no effect: %s", f.Name, reason))
		case o.ConfigFile != "" && !flagsBesideConfig[f.Name] && logging.Lookup(f.Name) == nil:
			out = append(out, fmt.Sprintf("flag --%s is ignored because --config is given", f.Name))
		}
	})
	sort.Strings(out)
	return out
}
