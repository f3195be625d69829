// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"text/template"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// cniBin is where Debian's containernetworking-plugins are.
const cniBin = "/usr/lib/cni"

// containerdConfig is for containerd 2 on a machine without CAP_SYS_RESOURCE, several of them side by side: nothing of it
// is outside of the node's directory, except the shims' sockets (see strays).
var containerdConfig = template.Must(template.New("containerd").Parse(`version = 3
root = '{{.Dir}}/containerd'
state = '{{.Dir}}/run'
# They would write to /opt and to /var/run/nri.
disabled_plugins = ['io.containerd.internal.v1.opt', 'io.containerd.nri.v1.nri']
oom_score = 0

[grpc]
address = '{{.Socket}}'

[plugins.'io.containerd.cri.v1.images']
snapshotter = 'overlayfs'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{{.Pause}}'

[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
enable_cdi = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['{{.CNI}}']
use_internal_loopback = true
conf_dir = '{{.Dir}}/cni'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
Root = '{{.Dir}}/run/runc'
`))

// kubeletConfig: see the kubelet's own reference for the keys.
var kubeletConfig = template.Must(template.New("kubelet").Parse(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: {{.PKI}}/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: {{.PKI}}/kubelet-{{.Name}}.crt
tlsPrivateKeyFile: {{.PKI}}/kubelet-{{.Name}}.key
containerRuntimeEndpoint: unix://{{.Socket}}
cgroupDriver: cgroupfs
cgroupRoot: {{.Cgroup}}
failCgroupV1: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
failSwapOn: false
oomScoreAdj: 0
clusterDomain: cluster.local
clusterDNS: ["{{.DNS}}"]
resolvConf: {{.Resolv}}
podLogsDir: {{.Dir}}/log
volumePluginDir: {{.Dir}}/volumeplugins
# All nodes share one disk and one memory with whatever else the machine does.
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%, imagefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
nodeStatusUpdateFrequency: 5s
registryPullQPS: 0
kubeAPIQPS: 100
kubeAPIBurst: 200
`))

// nodeSetup is what the templates are filled with.
type nodeSetup struct {
	node
	Dir, PKI, Socket, Cgroup, Resolv, Pause, CNI, DNS string
}

// writeNode writes the configuration of a node's containerd, kubelet and CNI.
func (d dir) writeNode(n node) error {
	for _, sub := range []string{"cni", "run", "containerd", "kubelet", "log", "volumeplugins"} {
		if err := os.MkdirAll(d.file(n.Name, sub), 0o755); err != nil {
			return err
		}
	}
	setup := nodeSetup{n, d.file(n.Name), d.file("pki"), d.socket(n), n.cgroup(), d.file("resolv.conf"), pauseImage, cniBin,
		lab.ClusterIP(lab.IPv4, dnsIndex).String()}
	for file, t := range map[string]*template.Template{"containerd.toml": containerdConfig, "kubelet.yaml": kubeletConfig} {
		var text bytes.Buffer
		if err := t.Execute(&text, setup); err != nil {
			return err
		}
		if err := os.WriteFile(d.file(n.Name, file), text.Bytes(), 0o600); err != nil {
			return err
		}
	}
	cni, err := cniConfig(n, d.file(n.Name, "cni-state"))
	if err != nil {
		return err
	}
	return os.WriteFile(d.file(n.Name, "cni", "10-pods.conflist"), cni, 0o600)
}

// cniConfig attaches each pod by a veth and routes of its own (ptp): a pod reaches its neighbours through the node, so that
// the answer to what a Service translated passes there again. On a bridge it would need br_netfilter for that.
func cniConfig(n node, state string) ([]byte, error) {
	type object = map[string]any
	var ranges, routes []any
	for _, f := range lab.Families() {
		ranges = append(ranges, []any{object{"subnet": n.podCIDR(f).String()}})
	}
	for _, dst := range []string{"0.0.0.0/0", "::/0"} {
		routes = append(routes, object{"dst": dst})
	}
	config := object{
		"cniVersion": "1.0.0",
		"name":       n.Cluster, // libcni keeps results by it, in /var/lib/cni/results
		"plugins": []any{
			object{
				"type": "ptp", "ipMasq": false, "mtu": 1500,
				"ipam": object{"type": "host-local", "dataDir": state, "ranges": ranges, "routes": routes},
			},
			object{"type": "portmap", "capabilities": object{"portMappings": true}},
		},
	}
	out, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("CNI configuration of %s: %w", n.Name, err)
	}
	return out, nil
}

// startNode runs a node's containerd and kubelet.
func (d dir) startNode(c cgroups, n node) ([]*daemon, error) {
	for _, group := range []string{n.cgroup(), daemonGroup(n)} {
		if err := c.create(group); err != nil {
			return nil, err
		}
	}
	runtime, err := d.spawn(c, daemonGroup(n), n.netns(), "containerd-"+n.Name,
		d.file("bin", "containerd"), "--config="+d.file(n.Name, "containerd.toml"))
	if err != nil {
		return nil, err
	}
	return []*daemon{runtime}, nil
}

// startKubelet runs a node's kubelet, once its containerd has the images.
func (d dir) startKubelet(c cgroups, n node) (*daemon, error) {
	return d.spawn(c, daemonGroup(n), n.netns(), "kubelet-"+n.Name, d.file("bin", "kubelet"),
		"--config="+d.file(n.Name, "kubelet.yaml"), "--kubeconfig="+d.kubeconfig("system:node:"+n.Name),
		"--root-dir="+d.file(n.Name, "kubelet"), "--cert-dir="+d.file("pki"),
		"--hostname-override="+n.Name, "--node-ip="+both(func(f lab.Family) string { return n.ip(f).String() }),
		"--v=1")
}
