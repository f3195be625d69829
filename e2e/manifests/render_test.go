// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package manifests holds what manifests/ says against the code and against a real API server.
package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/proxier/config"
)

// top is the repository's.
const top = "../.."

// kustomizations are all folders of manifests/ that a user can apply.
func kustomizations(t *testing.T) (dirs []string) {
	t.Helper()
	root := filepath.Join(top, "manifests")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "kustomization.yaml" || !strings.Contains(read(t, path), "\nkind: Kustomization\n") {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		dirs = append(dirs, dir)
		return err
	})
	if err != nil || len(dirs) < 4 {
		t.Fatalf("kustomizations %q: %v", dirs, err)
	}
	return dirs
}

// proxies are those that run the proxy.
func proxies(t *testing.T) map[string]rendered {
	t.Helper()
	out := map[string]rendered{}
	for _, dir := range kustomizations(t) {
		if r := render(t, dir); len(r.daemonSets) == 1 && r.daemonSets[0].Name == "nftproxy" {
			out[dir] = r
		}
	}
	for _, dir := range []string{"base", "overlays/kubeadm", "overlays/kind", "overlays/dual-stack"} {
		if len(out[dir].daemonSets) == 0 {
			t.Errorf("%s has no DaemonSet nftproxy", dir)
		}
	}
	return out
}

// rendered are the objects of a kustomization that are looked at here, and its text.
type rendered struct {
	text       []byte
	daemonSets []appsv1.DaemonSet
	configMaps []corev1.ConfigMap
	roles      []rbacv1.ClusterRole
}

// render makes the objects of a folder of manifests/.
func render(t *testing.T, dir string) rendered {
	t.Helper()
	return renderAt(t, filepath.Join(top, "manifests", dir))
}

// renderAt runs kubectl kustomize.
func renderAt(t *testing.T, dir string) rendered {
	t.Helper()
	kubectl := lab.Must(lab.Peer("kubectl"))(t)
	cmd := exec.Command(kubectl, "kustomize", dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil || stderr.Len() > 0 {
		t.Fatalf("kubectl kustomize %s: %v\n%s", dir, err, &stderr)
	}
	r := rendered{text: text}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var raw map[string]any
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return r
		}
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		r.add(t, raw)
	}
}

func (r *rendered) add(t *testing.T, raw map[string]any) {
	t.Helper()
	switch raw["kind"] {
	case "DaemonSet":
		r.daemonSets = append(r.daemonSets, decode[appsv1.DaemonSet](t, raw))
	case "ConfigMap":
		r.configMaps = append(r.configMaps, decode[corev1.ConfigMap](t, raw))
	case "ClusterRole":
		r.roles = append(r.roles, decode[rbacv1.ClusterRole](t, raw))
	}
}

// theirs is the ConfigMap that kubeadm 1.36 makes for kube-proxy, as far as its values differ from the defaults, with
// all keys that it writes.
func theirs() corev1.ConfigMap {
	cm := corev1.ConfigMap{Data: map[string]string{"config.conf": kubeadmConfig, "kubeconfig.conf": kubeadmKubeconfig}}
	cm.Name = "kube-proxy"
	return cm
}

// files are what the containers of a pod find below the mount of the volume "config".
func files(t *testing.T, pod corev1.PodSpec, maps []corev1.ConfigMap) map[string]string {
	t.Helper()
	find := func(name string) corev1.ConfigMap {
		i := slices.IndexFunc(maps, func(cm corev1.ConfigMap) bool { return cm.Name == name })
		if i < 0 {
			t.Fatalf("no ConfigMap %s", name)
		}
		return maps[i]
	}
	if len(pod.Volumes) != 1 || pod.Volumes[0].Name != "config" {
		t.Fatalf("volumes %+v: nothing of the host is needed", pod.Volumes)
	}
	out := map[string]string{}
	if cm := pod.Volumes[0].ConfigMap; cm != nil {
		return find(cm.Name).Data
	}
	for _, s := range pod.Volumes[0].Projected.Sources {
		data := find(s.ConfigMap.Name).Data
		for key, text := range data {
			to := key
			if len(s.ConfigMap.Items) > 0 {
				i := slices.IndexFunc(s.ConfigMap.Items, func(k corev1.KeyToPath) bool { return k.Key == key })
				if i < 0 {
					continue
				}
				to = s.ConfigMap.Items[i].Path
			}
			if _, twice := out[to]; twice {
				t.Errorf("two ConfigMaps have a file %s", to)
			}
			out[to] = text
		}
	}
	return out
}

// load loads the configuration that a container gets.
func load(t *testing.T, c corev1.Container, found map[string]string) *config.Config {
	t.Helper()
	if d := cmp.Diff([]string{"/nftproxy"}, c.Command); d != "" {
		t.Errorf("%s: command (-want +got):\n%s", c.Name, d)
	}
	if len(c.VolumeMounts) != 1 || !c.VolumeMounts[0].ReadOnly {
		t.Fatalf("%s: mounts %+v", c.Name, c.VolumeMounts)
	}
	opts, flags := config.NewOptions(), pflag.NewFlagSet(c.Name, pflag.ContinueOnError)
	opts.AddFlags(flags)
	var args []string
	for _, a := range c.Args {
		args = append(args, strings.ReplaceAll(a, "$(NODE_NAME)", "node-1"))
	}
	if err := flags.Parse(args); err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	read := func(name string) ([]byte, error) {
		if dir, file := path.Split(name); path.Clean(dir) == c.VolumeMounts[0].MountPath && found[file] != "" {
			return []byte(found[file]), nil
		}
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	cfg, err := opts.Load(flags, config.Machine{Hostname: os.Hostname, ReadFile: read})
	if err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	// A key or flag that does not exist is a warning, too.
	if len(cfg.Warnings) > 0 {
		t.Errorf("%s: warnings: %q", c.Name, cfg.Warnings)
	}
	if cfg.NodeName != "node-1" || opts.InitOnly == (c.Name == "nftproxy") {
		t.Errorf("%s: node %q, init only %v", c.Name, cfg.NodeName, opts.InitOnly)
	}
	text, err := read(cfg.Client.Kubeconfig)
	if err != nil {
		t.Fatalf("%s: kubeconfig: %v", c.Name, err)
	}
	kubeconfig, err := clientcmd.Load(text)
	if err != nil {
		t.Fatalf("%s: kubeconfig: %v", c.Name, err)
	}
	at := kubeconfig.Contexts[kubeconfig.CurrentContext]
	if at == nil || kubeconfig.Clusters[at.Cluster] == nil || kubeconfig.AuthInfos[at.AuthInfo] == nil ||
		kubeconfig.Clusters[at.Cluster].Server == "" || kubeconfig.AuthInfos[at.AuthInfo].TokenFile == "" {
		t.Errorf("%s: kubeconfig %+v", c.Name, kubeconfig)
	}
	return cfg
}

// TestFlagsAndKeys: what the manifests say is loaded without a warning, so each flag and each key exists, and the probes
// ask where the answers are.
func TestFlagsAndKeys(t *testing.T) {
	for dir, r := range proxies(t) {
		t.Run(dir, func(t *testing.T) {
			pod := r.daemonSets[0].Spec.Template.Spec
			found := files(t, pod, append(r.configMaps, theirs()))
			var cfg *config.Config
			for _, c := range append(pod.InitContainers, pod.Containers...) {
				cfg = load(t, c, found)
			}
			main := pod.Containers[0]
			_, port, _ := strings.Cut(cfg.Healthz, ":")
			for want, probe := range map[string]*corev1.Probe{"/livez": main.LivenessProbe, "/healthz": main.ReadinessProbe} {
				if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != want || probe.HTTPGet.Port.String() != port {
					t.Errorf("probe of %s at port %s: %+v", want, port, probe)
				}
			}
			both := cfg.DetectLocal
			if (dir == "overlays/kind" || dir == "overlays/dual-stack") && (!both.CIDRs[0].IsValid() || !both.CIDRs[1].IsValid()) {
				t.Errorf("not both families: %+v", both)
			}
		})
	}
}

// TestLeastPrivilege: the containers may do what they must, and no more.
func TestLeastPrivilege(t *testing.T) {
	for dir, r := range proxies(t) {
		pod := r.daemonSets[0].Spec.Template.Spec
		if len(pod.InitContainers) != 1 || len(pod.Containers) != 1 {
			t.Fatalf("%s: %d and %d containers", dir, len(pod.InitContainers), len(pod.Containers))
		}
		if pod.SecurityContext == nil || pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: no seccomp profile", dir)
		}
		yes, no, root := true, false, int64(0)
		want := &corev1.SecurityContext{
			Privileged: &no, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsUser: &root,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}},
		}
		if d := cmp.Diff(want, pod.Containers[0].SecurityContext); d != "" {
			t.Errorf("%s: security context (-want +got):\n%s", dir, d)
		}
		if !pod.HostNetwork || pod.HostPID || pod.HostIPC || pod.PriorityClassName != "system-node-critical" {
			t.Errorf("%s: pod %+v", dir, pod)
		}
	}
}
