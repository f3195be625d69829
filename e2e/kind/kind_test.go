// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package kind holds the configurations of clusters made by kind, and run.sh, which tries one.
package kind

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	"sigs.k8s.io/kind/pkg/cluster"
	"sigs.k8s.io/yaml"
)

// docker stands for Docker: it writes down what it is asked, and starts no container. Kind then gives up, but not before
// its own loader has read the configuration, strictly, and has judged and planned it. Kind asks for all nodes at once and
// leaves at the first no, so that each no waits, 10 s at most, until all have been asked for.
const docker = `#!/bin/sh
echo "$*" >>"$ASKED"
case $1 in
info) echo '{"CgroupVersion":"2","CgroupDriver":"systemd","MemoryLimit":true,"PidsLimit":true,"CPUShares":true}' ;;
run)
	for i in $(seq 500); do
		[ "$(grep -c '^run ' "$ASKED")" -lt "$NODES" ] || exit 1
		sleep 0.02
	done
	exit 1
	;;
esac
`

// asked has kind make a cluster of a configuration, and gives what Docker was asked, and kind's error.
func asked(t *testing.T, config []byte, nodes int) ([]string, error) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "asked")
	if err := os.WriteFile(filepath.Join(dir, "docker"), []byte(docker), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("ASKED", log)
	t.Setenv("NODES", strconv.Itoa(nodes))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	err := cluster.NewProvider(cluster.ProviderWithDocker()).Create("", cluster.CreateWithRawConfig(config),
		cluster.CreateWithKubeconfigPath(filepath.Join(dir, "kubeconfig")))
	text, _ := os.ReadFile(log)
	return strings.Split(string(text), "\n"), err
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestConfigurations: kind takes each of them, and asks Docker for each node; kube-proxy is left out.
func TestConfigurations(t *testing.T) {
	for name, nodes := range map[string]int{"ipv4": 3, "dual-stack": 3, "zones": 5} {
		t.Run(name, func(t *testing.T) {
			data := read(t, name+".yaml")
			lines, err := asked(t, data, nodes)
			if err == nil || !strings.Contains(err.Error(), "docker run") {
				t.Errorf("kind did not come as far as Docker: %v", err)
			}
			runs := slices.DeleteFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "run ") })
			if len(runs) != nodes {
				t.Errorf("asked for %d nodes, not %d: %q", len(runs), nodes, runs)
			}
			if !slices.ContainsFunc(runs, func(l string) bool { return strings.Contains(l, "--name nftproxy-control-plane ") }) {
				t.Error("kube-proxy.yaml names a control plane that is not there")
			}
			c := decoded(t, data)
			if c.Networking.KubeProxyMode != "none" {
				t.Errorf("kubeProxyMode is %q", c.Networking.KubeProxyMode)
			}
			served(t, c.Networking.PodSubnet)
		})
	}
}

// TestZones: two zones of two workers each, the control plane in the first.
func TestZones(t *testing.T) {
	zones := map[string]int{}
	for _, n := range decoded(t, read(t, "zones.yaml")).Nodes {
		zones[string(n.Role)+" "+n.Labels["topology.kubernetes.io/zone"]]++
	}
	if len(zones) != 3 || zones["worker a"] != 2 || zones["worker b"] != 2 || zones["control-plane a"] != 1 {
		t.Errorf("got %v", zones)
	}
}

// TestMistakes: a configuration with a mistake does not come as far as Docker's run, so that TestConfigurations says
// something.
func TestMistakes(t *testing.T) {
	good := string(read(t, "dual-stack.yaml"))
	for _, change := range [][2]string{{"kubeProxyMode", "kubeproxymode"}, {"ipFamily: dual", "ipFamily: three"}, {"role: worker", "role: waiter"}} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if bad == good {
			t.Fatalf("%q is not there", change[0])
		}
		lines, err := asked(t, []byte(bad), 3)
		if err == nil || slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "run ") }) {
			t.Errorf("%q was taken: %v", change[1], err)
		}
	}
}

// decoded is a configuration with kind's defaults.
func decoded(t *testing.T, data []byte) v1alpha4.Cluster {
	t.Helper()
	var c v1alpha4.Cluster
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		t.Fatal(err)
	}
	v1alpha4.SetDefaultsCluster(&c)
	return c
}

// served holds the overlay's clusterCIDR to the ranges that kind gives to pods.
func served(t *testing.T, subnets string) {
	t.Helper()
	var config struct{ ClusterCIDR string }
	if err := yaml.Unmarshal(read(t, "../../manifests/overlays/kind/config.conf"), &config); err != nil {
		t.Fatal(err)
	}
	for _, s := range strings.Split(subnets, ",") {
		if !slices.Contains(strings.Split(config.ClusterCIDR, ","), s) {
			t.Errorf("kind gives pods %s, the overlay says %s", s, config.ClusterCIDR)
		}
	}
}
