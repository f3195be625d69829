// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/proxier/sysctl"
)

// Machine is what Load reads of the machine. It is passed in so that the same flags and files give the same Config in a
// test.
type Machine struct {
	// Hostname returns the host name (os.Hostname). Called only without override.
	Hostname func() (string, error)
	// ReadFile reads a configuration file (os.ReadFile).
	ReadFile func(path string) ([]byte, error)
}

// Load makes the configuration from parsed flags and from the files they name. fs is the flag set that AddFlags was
// called with. The error has one line per wrong setting. Load may be called again, and reads the files again.
func (o *Options) Load(fs *pflag.FlagSet, m Machine) (*Config, error) {
	docs, err := o.read(m)
	if err != nil {
		return nil, err
	}
	warnings := append(docs.warnings, o.flagWarnings(fs)...)
	kube := docs.kube
	if kube == nil {
		kube = o.fromFlags()
	} else {
		warnings = append(warnings, keyWarnings(kube)...)
		adoptSections(kube)
		setDefaults(kube)
		if err := loggingFromFlags(fs, &kube.Logging); err != nil {
			return nil, err
		}
	}
	c, err := o.resolve(kube, docs, m)
	if err != nil {
		return nil, err
	}
	c.Warnings = append(warnings, c.Warnings...)
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
		if err := docs.decodeFile(name, data); err != nil {
			return docs, err
		}
		if docs.kube == nil && name == o.ConfigFile {
			return docs, fmt.Errorf("%s: contains no %s; a file with an %s alone belongs to --nftproxy-config", name, kubeKind, OwnKind)
		}
	}
	if docs.own == nil {
		docs.own = newOwn()
	}
	return docs, nil
}

// fromFlags completes what the flags wrote, as kube-proxy does without --config.
func (o *Options) fromFlags() *kubeproxyconfig.KubeProxyConfiguration {
	k := o.kube.DeepCopy()
	orValue(&k.BindAddress, defaultBindAddress) // an empty flag does not count
	if o.WriteConfigTo == "" {
		k.HealthzBindAddress = deprecatedPort(k.HealthzBindAddress, o.healthzPort)
		k.MetricsBindAddress = deprecatedPort(k.MetricsBindAddress, o.metricsPort)
	}
	return k
}

// deprecatedPort applies --healthz-port or --metrics-port: 0 disables, any other is used for an address without a port.
func deprecatedPort(addr string, port int32) string {
	if port == 0 {
		return ""
	}
	return withPort(addr, port)
}

// adoptSections takes over settings for the mode that kube-proxy would choose for an empty mode (iptables), so that its
// configuration keeps its meaning where the nftables section is silent. Call before setDefaults.
func adoptSections(k *kubeproxyconfig.KubeProxyConfiguration) {
	if k.Mode != "" {
		return
	}
	n, i := &k.NFTables, &k.IPTables
	n.MasqueradeAll = n.MasqueradeAll || i.MasqueradeAll
	if n.MasqueradeBit == nil {
		n.MasqueradeBit = i.MasqueradeBit
	}
	orValue(&n.SyncPeriod.Duration, i.SyncPeriod.Duration)
	orValue(&n.MinSyncPeriod.Duration, i.MinSyncPeriod.Duration)
}

// resolve validates both documents and makes the Config.
func (o *Options) resolve(k *kubeproxyconfig.KubeProxyConfiguration, docs documents, m Machine) (*Config, error) {
	if o.metricsOverride != "" {
		k.MetricsBindAddress = withPort(o.metricsOverride, metricsPort)
	}
	own := docs.own
	gates, warnings, gateErr := newGates(k.FeatureGates)
	var c checks
	root := field.NewPath(kubeKind)
	c.kube(k, root)
	local := c.detectLocal(k, root)
	ports := c.nodePorts(k.NodePortAddresses, root.Child("nodePortAddresses"))
	externalIPs := c.own(own, field.NewPath(OwnKind))
	if gateErr == nil {
		c.errs = append(c.errs, logsapi.Validate(&k.Logging, gates, root.Child("logging"))...)
	}
	node, nodeErr := o.nodeName(k, m)
	lines := append(docs.wrong, gateErr, nodeErr)
	for _, err := range c.errs {
		lines = append(lines, err)
	}
	if err := errors.Join(lines...); err != nil {
		return nil, err
	}
	if !gates.Enabled(allowServiceExternalIPs) {
		externalIPs = ExternalIPs{}
	}
	if o.manifests != "" {
		own.Manifests = o.manifests
	}
	// What the run decided is visible in /configz and --write-config-to.
	k.SetGroupVersionKind(kubeproxyconfig.SchemeGroupVersion.WithKind(kubeKind))
	k.Mode = modeNFTables
	k.PortRange = "" // without effect
	orValue(&k.DetectLocalMode, kubeproxyconfig.LocalMode(LocalByClusterCIDR))
	if len(k.NodePortAddresses) == 0 {
		k.NodePortAddresses, ports.Primary = []string{keywordPrimary}, true
	}
	ports.Localhost = ports.Localhost || own.LocalhostNodePorts
	if o.hostnameOverride != "" {
		k.HostnameOverride = node
	}
	client, ct := k.ClientConnection, k.Conntrack
	cfg := &Config{
		NodeName: node,
		Client: Client{
			Kubeconfig: client.Kubeconfig, Master: o.master,
			ContentType: client.ContentType, AcceptContentTypes: client.AcceptContentTypes,
			QPS: client.QPS, Burst: int(client.Burst),
		},
		Manifests:     own.Manifests,
		MasqueradeBit: int(*k.NFTables.MasqueradeBit), MasqueradeAll: k.NFTables.MasqueradeAll,
		DetectLocal: local, NodePorts: ports, ExternalIPs: externalIPs,
		SyncPeriod: k.NFTables.SyncPeriod.Duration, MinSyncPeriod: k.NFTables.MinSyncPeriod.Duration,
		Healthz: k.HealthzBindAddress, Metrics: k.MetricsBindAddress, BindHardFail: k.BindAddressHardFail,
		Profiling: k.EnableProfiling, ShowHiddenMetricsFor: k.ShowHiddenMetricsForVersion,
		Conntrack: sysctl.Conntrack{
			MaxPerCore: int(*ct.MaxPerCore), Min: int(*ct.Min),
			TCPEstablished: ct.TCPEstablishedTimeout.Duration, TCPCloseWait: ct.TCPCloseWaitTimeout.Duration,
			TCPBeLiberal: ct.TCPBeLiberal,
			UDP:          ct.UDPTimeout.Duration, UDPStream: ct.UDPStreamTimeout.Duration,
		},
		OOMScoreAdj: int(*k.OOMScoreAdj),
		Gates:       gates, Logging: k.Logging,
		Own: *own, External: k,
		Warnings: warnings,
	}
	if a, ok := parseAddr(k.BindAddress); ok && !a.IsUnspecified() {
		cfg.NodeIP = a
	}
	return cfg, nil
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

// loggingFromFlags lets logging flags override the file, so that `--config F -v 4` has the effect of -v 4.
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
	// The flag's patterns come first: the first that matches counts.
	to.VModule = append(to.VModule, fromFile...)
	return errors.Join(errs...)
}

// keysWithoutEffect are the keys, or sections, of KubeProxyConfiguration that are accepted, warned about when set, and
// otherwise ignored, with the reason.
var keysWithoutEffect = map[string]string{
	"configSyncPeriod":            reasonResync,
	"iptables.localhostNodePorts": "list localhost in nodePortAddresses instead",
	"ipvs":                        reasonIPVS,
	"winkernel":                   reasonWindows,
	"windowsRunAsService":         reasonWindows,
	"portRange":                   "kube-proxy ignores it too",
}

// keyWarnings names the keys that a file sets and that have no effect. k is as decoded, before defaults: a zero value
// counts as not set, and so does a default, since a file written by --write-config-to contains all of them.
func keyWarnings(k *kubeproxyconfig.KubeProxyConfiguration) []string {
	var defaults kubeproxyconfig.KubeProxyConfiguration
	setDefaults(&defaults)
	var out []string
	for _, key := range setKeys(reflect.ValueOf(*k), reflect.ValueOf(defaults), "") {
		section, _, _ := strings.Cut(key, ".")
		reason := keysWithoutEffect[key]
		orValue(&reason, keysWithoutEffect[section])
		if section == "iptables" && k.Mode != "" { // else adoptSections reads them
			orValue(&reason, "set the key of the nftables section instead")
		}
		if reason != "" {
			out = append(out, fmt.Sprintf("%s: %s has no effect: %s", kubeKind, key, reason))
		}
	}
	return out
}

// setKeys lists the keys with a value that is not the default, as dotted JSON names.
func setKeys(v, defaults reflect.Value, prefix string) []string {
	var out []string
	for i := range v.NumField() {
		name := jsonName(v.Type().Field(i))
		value := v.Field(i)
		switch {
		case value.IsZero() || name == "" || reflect.DeepEqual(value.Interface(), defaults.Field(i).Interface()):
		case value.Kind() == reflect.Struct && !isLeaf(value.Type()):
			out = append(out, setKeys(value, defaults.Field(i), prefix+name+".")...)
		default:
			out = append(out, prefix+name)
		}
	}
	return out
}
