// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// account is the user name of the ServiceAccount of the manifests.
const account = "system:serviceaccount:kube-system:nftproxy"

// auditing starts an API server that writes down who asked for what.
func auditing(t *testing.T) (cp *lab.ControlPlane, log string) {
	t.Helper()
	lab.RequireRoot(t)
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	text := "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n  users: [" + account + "]\n- level: None\n"
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cp = lab.Must(lab.StartControlPlane(t.Context(), lab.ControlPlaneOptions{
		RBAC: true, Flags: []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log, "--audit-log-mode=blocking"},
	}))(t)
	t.Cleanup(cp.Close)
	return cp, log
}

// TestServer: an API server takes the manifests, and a proxy with the role of the manifests, and no other, serves. One
// server for all, since starting one takes longest.
func TestServer(t *testing.T) {
	cp, log := auditing(t)
	t.Run("dry run", func(t *testing.T) { dryRun(t, cp) })
	t.Run("inside kube-proxy's role", func(t *testing.T) { insideNodeProxier(t, cp) })
	t.Run("exactly what is used", func(t *testing.T) { exactlyUsed(t, cp, log) })
}

// dryRun: the server validates strictly, defaults and admits, and stores nothing.
func dryRun(t *testing.T, cp *lab.ControlPlane) {
	for _, dir := range kustomizations(t) {
		file := filepath.Join(t.TempDir(), "all.yaml")
		if err := os.WriteFile(file, render(t, dir).text, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := cp.Kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", file)
		if err != nil {
			t.Errorf("%s: %v", dir, err)
		}
		if n := strings.Count(out, "serverside-applied (server dry run)"); n == 0 {
			t.Errorf("%s: no objects:\n%s", dir, out)
		}
	}
	if _, err := cp.Client.AppsV1().DaemonSets("kube-system").Get(t.Context(), "nftproxy", metav1.GetOptions{}); err == nil {
		t.Error("the dry run left a DaemonSet")
	}
}

// permissions are the rules, one "group/resource verb" each.
func permissions(rules []rbacv1.PolicyRule) (out []string) {
	for _, r := range rules {
		for _, g := range r.APIGroups {
			for _, res := range r.Resources {
				for _, v := range r.Verbs {
					out = append(out, g+"/"+res+" "+v)
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// ours are the permissions of the manifests.
func ours(t *testing.T) ([]rbacv1.PolicyRule, []string) {
	t.Helper()
	roles := render(t, "base").roles
	if len(roles) != 1 {
		t.Fatalf("%d ClusterRoles", len(roles))
	}
	return roles[0].Rules, permissions(roles[0].Rules)
}

func insideNodeProxier(t *testing.T, cp *lab.ControlPlane) {
	role, err := cp.Client.RbacV1().ClusterRoles().Get(t.Context(), "system:node-proxier", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, mine := ours(t)
	for _, p := range mine {
		if !slices.Contains(permissions(role.Rules), p) {
			t.Errorf("system:node-proxier lacks %s", p)
		}
	}
}

// exactlyUsed runs a proxy as the ServiceAccount and compares what it asked for with what it may.
func exactlyUsed(t *testing.T, cp *lab.ControlPlane, log string) {
	rules, mine := ours(t)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "nftproxy"}, Rules: rules}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "nftproxy"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "nftproxy"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "nftproxy", Namespace: "kube-system"}},
	}
	n := lab.Start(t, lab.Options{Nodes: 1})
	api := lab.Must(n.Attach(cp))(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cp.WriteKubeconfig(kubeconfig, api.URL(lab.IPv4), account); err != nil {
		t.Fatal(err)
	}
	if err := cp.Apply(t.Context(), lab.NewNode(n.Node(1))); err != nil {
		t.Fatal(err)
	}
	if _, err := cp.Client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cp.Client.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.Must(lab.StartProxy(n.Node(1), lab.ProxySpec{Kind: lab.NFTProxy, API: api,
		Config: map[string]any{"clientConnection": map[string]any{"kubeconfig": kubeconfig}}}))(t)

	// The server streams first lists, so that list is used with older ones only.
	isList := func(p string) bool { return strings.HasSuffix(p, " list") }
	want := slices.DeleteFunc(slices.Clone(mine), isList)
	for until := time.Now().Add(lab.HangLimit); ; time.Sleep(50 * time.Millisecond) {
		used, refused := asked(t, log)
		if len(refused) > 0 {
			t.Fatalf("refused: %q", refused)
		}
		d := cmp.Diff(want, slices.DeleteFunc(used, isList))
		if d == "" {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("asked for (-role +requests):\n%s", d)
		}
	}
	for _, p := range mine {
		if watch := strings.TrimSuffix(p, "list") + "watch"; isList(p) && !slices.Contains(mine, watch) {
			t.Errorf("%s, but not %s", p, watch)
		}
	}
}

// asked reads an audit log: the permissions that were used, and those that were lacking.
func asked(t *testing.T, log string) (used, refused []string) {
	t.Helper()
	file, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Verb      string `json:"verb"`
			ObjectRef *struct {
				Resource string `json:"resource"`
				APIGroup string `json:"apiGroup"`
			} `json:"objectRef"`
			ResponseStatus struct{ Code int } `json:"responseStatus"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue // the last line may not be whole yet
		}
		if e.ObjectRef == nil {
			continue
		}
		p := fmt.Sprintf("%s/%s %s", e.ObjectRef.APIGroup, e.ObjectRef.Resource, e.Verb)
		used = append(used, p)
		if e.ResponseStatus.Code == 401 || e.ResponseStatus.Code == 403 {
			refused = append(refused, p)
		}
	}
	slices.Sort(used)
	return slices.Compact(used), refused
}

// decode makes a typed object; keys that its type does not have are an error.
func decode[T any](t *testing.T, raw map[string]any) (out T) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(raw, &out, true); err != nil {
		t.Fatalf("%v %v: %v", raw["kind"], raw["metadata"], err)
	}
	return out
}
