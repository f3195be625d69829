// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// Where the control plane listens, in the namespace of its node.
const (
	apiPort = 6443
	etcdURL = "http://127.0.0.1:2379"
	peerURL = "http://127.0.0.1:2380"
)

// apiURL is where everything in the cluster reaches the API server: at the control plane's node.
func apiURL(control node) string {
	return "https://" + netip.AddrPortFrom(control.ip(lab.IPv4), apiPort).String()
}

// both joins the two families' values with a comma.
func both(of func(lab.Family) string) string { return of(lab.IPv4) + "," + of(lab.IPv6) }

func podRange(f lab.Family) string { return lab.ClusterCIDR(f).String() }

func serviceRange(f lab.Family) string { return lab.ServiceCIDR(f).String() }

// writePKI makes all certificates and kubeconfigs: pki/*.crt and *.key, *.kubeconfig. They are good for a day.
func (d dir) writePKI(nodes []node) error {
	ca, err := lab.NewAuthority()
	if err != nil {
		return err
	}
	own, err := ca.Own()
	if err != nil {
		return err
	}
	if err := d.writePair("ca", own, nil); err != nil {
		return err
	}
	addrs := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	for _, f := range lab.Families() {
		addrs = append(addrs, nodes[0].ip(f), lab.ClusterIP(f, 1))
	}
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	pair, err := ca.Server("kube-apiserver", names, addrs)
	if err := d.writePair("apiserver", pair, err); err != nil {
		return err
	}
	pair, err = ca.Server("service-accounts", nil, nil) // only its key is used
	if err := d.writePair("sa", pair, err); err != nil {
		return err
	}
	for user, groups := range map[string][]string{"apiserver-kubelet-client": {"system:masters"}, "front-proxy-client": nil} {
		pair, err = ca.Client(user, groups...)
		if err := d.writePair(user, pair, err); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		addrs := []netip.Addr{n.ip(lab.IPv4), n.ip(lab.IPv6)}
		pair, err = ca.Server("system:node:"+n.Name, []string{n.Name}, addrs, "system:nodes")
		if err := d.writePair("kubelet-"+n.Name, pair, err); err != nil {
			return err
		}
	}
	return d.writeKubeconfigs(ca, nodes)
}

// writePair writes a certificate and its key, unless it could not be made.
func (d dir) writePair(name string, p lab.KeyPair, err error) error {
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.file("pki", name+".crt"), p.Cert, 0o600); err != nil {
		return err
	}
	return os.WriteFile(d.file("pki", name+".key"), p.Key, 0o600)
}

// writeKubeconfigs makes those of the administrator, the controllers, and the kubelets.
func (d dir) writeKubeconfigs(ca *lab.Authority, nodes []node) error {
	users := map[string][]string{
		"admin":                          {"system:masters"},
		"system:kube-controller-manager": nil,
		"system:kube-scheduler":          nil,
	}
	for _, n := range nodes {
		users["system:node:"+n.Name] = []string{"system:nodes"}
	}
	for user, groups := range users {
		pair, err := ca.Client(user, groups...)
		if err != nil {
			return err
		}
		text := kubeconfig(apiURL(nodes[0]), ca.PEM, pair)
		if err := os.WriteFile(d.kubeconfig(user), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// kubeconfig is the path of a user's.
func (d dir) kubeconfig(user string) string {
	if user == "admin" {
		return d.adminConfig()
	}
	return d.file("pki", user+".kubeconfig")
}

// kubeconfig is the text of one.
func kubeconfig(server string, ca []byte, user lab.KeyPair) string {
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
  - name: nftproxy
    cluster: {server: %q, certificate-authority-data: %s}
users:
  - name: user
    user: {client-certificate-data: %s, client-key-data: %s}
contexts:
  - name: nftproxy
    context: {cluster: nftproxy, user: user}
current-context: nftproxy
`, server, b64(ca), b64(user.Cert), b64(user.Key))
}

// startControl runs programs in the control plane's namespace; the first argument is the name.
func (d dir) startControl(c cgroups, control node, programs ...[]string) ([]*daemon, error) {
	var all []*daemon
	for _, argv := range programs {
		p, err := d.spawn(c, daemonGroup(control), control.netns(), argv[0], append([]string{d.file("bin", argv[0])}, argv[1:]...)...)
		if err != nil {
			return all, err
		}
		all = append(all, p)
	}
	return all, nil
}

// daemonGroup is the cgroup of a node's own processes. It lies beside the kubelet's, which has pods only.
func daemonGroup(n node) string { return n.cgroup() + "-daemons" }

func (d dir) etcdArgs() []string {
	return []string{
		"etcd", "--data-dir=" + d.file("etcd"),
		"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=" + peerURL, "--initial-advertise-peer-urls=" + peerURL, "--initial-cluster=default=" + peerURL,
		"--unsafe-no-fsync", // the data dies with the cluster
		"--log-level=warn",
	}
}

func (d dir) apiserverArgs(control node) []string {
	pki := func(name string) string { return d.file("pki", name) }
	return []string{
		"kube-apiserver", "--etcd-servers=" + etcdURL,
		"--bind-address=::", fmt.Sprintf("--secure-port=%d", apiPort),
		"--advertise-address=" + control.ip(lab.IPv4).String(), // what the Service kubernetes leads to
		"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
		"--client-ca-file=" + pki("ca.crt"),
		"--kubelet-certificate-authority=" + pki("ca.crt"),
		"--kubelet-client-certificate=" + pki("apiserver-kubelet-client.crt"),
		"--kubelet-client-key=" + pki("apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP,Hostname",
		"--requestheader-client-ca-file=" + pki("ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + pki("front-proxy-client.crt"), "--proxy-client-key-file=" + pki("front-proxy-client.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki("sa.key"), "--service-account-signing-key-file=" + pki("sa.key"),
		"--service-cluster-ip-range=" + both(serviceRange),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged",
	}
}

func (d dir) controllersArgs() []string {
	pki := func(name string) string { return d.file("pki", name) }
	return []string{
		"kube-controller-manager", "--kubeconfig=" + d.kubeconfig("system:kube-controller-manager"),
		"--authentication-kubeconfig=" + d.kubeconfig("system:kube-controller-manager"),
		"--authorization-kubeconfig=" + d.kubeconfig("system:kube-controller-manager"),
		"--bind-address=127.0.0.1", "--leader-elect=false",
		"--use-service-account-credentials", "--service-account-private-key-file=" + pki("sa.key"),
		"--root-ca-file=" + pki("ca.crt"),
		"--cluster-signing-cert-file=" + pki("ca.crt"), "--cluster-signing-key-file=" + pki("ca.key"),
		"--service-cluster-ip-range=" + both(serviceRange), "--cluster-cidr=" + both(podRange),
		// The Node objects are made with their ranges, so that routes and CNI configurations can be written before.
		"--allocate-node-cidrs=false",
		"--flex-volume-plugin-dir=" + d.file("flexvolume"), // by default below /usr
	}
}

func (d dir) schedulerArgs() []string {
	config := d.kubeconfig("system:kube-scheduler")
	return []string{
		"kube-scheduler", "--kubeconfig=" + config, "--authentication-kubeconfig=" + config,
		"--authorization-kubeconfig=" + config, "--bind-address=127.0.0.1", "--leader-elect=false",
	}
}
