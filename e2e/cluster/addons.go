// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"strings"
	"text/template"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// dnsIndex is the number of the cluster's DNS among the ClusterIPs: 10.96.0.10, fd00:10:96::a.
const dnsIndex = 10

var (
	//go:embed addons.yaml.tmpl
	addonsText string
	//go:embed kube-proxy.yaml.tmpl
	kubeProxyText string
)

// render fills a manifest in.
func render(text string, control node) (string, error) {
	t, err := template.New("manifest").Parse(text)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = t.Execute(&out, map[string]string{
		"CoreDNS": corednsImage, "Proxy": proxyImage, "Server": apiURL(control),
		"DNS4":     lab.ClusterIP(lab.IPv4, dnsIndex).String(),
		"DNS6":     lab.ClusterIP(lab.IPv6, dnsIndex).String(),
		"PodRange": both(podRange),
		"Web4":     webIP(lab.IPv4), "Web6": webIP(lab.IPv6), "Pod": podImage,
	})
	return out.String(), err
}

// nodeObjects are the Node objects of all nodes, with labels and ranges of pods: the kubelets find them and fill in the rest.
func nodeObjects(nodes []node) string {
	var b strings.Builder
	for i, n := range nodes {
		role := "worker"
		if i == 0 {
			role = "control-plane"
		}
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Node
metadata:
  name: %[1]s
  labels:
    kubernetes.io/hostname: %[1]s
    node-role.kubernetes.io/%[2]s: ""
    topology.kubernetes.io/zone: %[3]s
    topology.kubernetes.io/region: lab
spec:
  podCIDR: %[4]s
  podCIDRs: [%[4]s, "%[5]s"]
`, n.Name, role, n.Zone, n.podCIDR(lab.IPv4), n.podCIDR(lab.IPv6))
	}
	return b.String()
}

// kubectl runs kubectl as the administrator, from the client's namespace.
func (d dir) kubectl(stdin string, args ...string) (string, error) {
	return output(stdin, append([]string{"nsenter", "--net=/run/netns/" + d.clientNetns(),
		d.file("bin", "kubectl"), "--kubeconfig=" + d.adminConfig()}, args...)...)
}

// apply writes manifests to the API server.
func (d dir) apply(manifests string) error {
	_, err := d.kubectl(manifests, "apply", "-f", "-")
	return err
}

// installProxy applies the manifests of a proxy and waits until it runs everywhere.
func (d dir) installProxy(proxy, repository string, control node, daemons []*daemon) error {
	if proxy == "none" {
		return nil
	}
	var err error
	if proxy == "nftproxy" {
		_, err = d.kubectl("", "apply", "-k", repository+"/manifests/overlays/kubeadm")
	} else {
		var text string
		if text, err = render(kubeProxyText, control); err == nil {
			err = d.apply(text)
		}
	}
	if err != nil {
		return err
	}
	return d.rollout("daemonset/"+proxy, daemons)
}

// rollout waits for a workload of kube-system.
func (d dir) rollout(what string, daemons []*daemon) error {
	return poll(2*time.Minute, what, daemons, func() error {
		_, err := d.kubectl("", "-n", "kube-system", "rollout", "status", what, "--timeout=5s")
		return err
	})
}

// dnsPod asks the cluster's DNS for the API server's Service, by its ClusterIP, until it is answered.
const dnsPod = `apiVersion: v1
kind: Pod
metadata: {name: dns-check, namespace: default}
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers:
    - name: lookup
      image: ` + podImage + `
      imagePullPolicy: Never
      command: [/pod, lookup, kubernetes.default.svc.cluster.local.]
`

// checkDNS resolves a name in a pod, through the Service kube-dns.
func (d dir) checkDNS() error {
	if err := d.apply(dnsPod); err != nil {
		return err
	}
	if _, err := d.kubectl("", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/dns-check", "--timeout=90s"); err != nil {
		return err
	}
	got, err := d.kubectl("", "logs", "dns-check")
	if err != nil {
		return err
	}
	if want := lab.ClusterIP(lab.IPv4, 1).String(); !strings.Contains(got, want) {
		return fmt.Errorf("DNS: a pod resolves the API server's Service as %q, not as %s", got, want)
	}
	_, err = d.kubectl("", "delete", "pod", "dns-check")
	return err
}
