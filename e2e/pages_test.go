// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// readers is the lab in which the commands of the documentation are typed: node 1 serves examples/, node 2 what the API server
// has, node 3 has no proxy.
type readers struct {
	*cluster
	root, bin, dir string // of the repository, of binaries, and where files are written
	config         string // of the proxy of node 2
	api            *lab.API
}

// line is one command of a page.
type line struct{ page, text string }

func (l line) String() string { return l.page + ": " + l.text }

// way is how commands of a kind are played; the first that matches counts.
type way struct {
	is   *regexp.Regexp
	play func(*readers, line) error
}

func ways() []way {
	re := regexp.MustCompile
	return []way{
		// Played by other tests, from the same text.
		{re(`^docs/troubleshooting\.md: node-[12]# nftproxy `), func(*readers, line) error { return nil }}, // TestStories
		{re(`^docs/migrate\.md: kubectl `), func(*readers, line) error { return nil }},                     // TestMigratePage
		// Of the repository.
		{re(`: make `), makes},
		{re(`: go (test|run) `), goes},
		// Of this node.
		{re(`: nftproxy dump --diff --config=`), onAPIServed},
		{re(`: (source <\()?(bin/)?nftproxy (dump|explain|completion|version)\b`), onServing},
		{re(`: (bin/)?nftproxy trace `), traces},
		{re(`: nft list `), onServing},
		{re(`: (bin/)?nftproxy (cleanup)\b`), onSpare},
		{re(`: (bin/)?nftproxy --`), serves},
		{re(`: unshare --net sh -c 'ip link set lo up; timeout 5 nftproxy `), unshares},
		{re(`: echo "110 nftproxy" >> /etc/iproute2/rt_protos$`), onServing},
		{re(`: ip route show table all proto nftproxy$`), onServing},
		{re(`: kubectl .*exec (daemonset/)?nftproxy\S* -- nftproxy `), execs},
		{re(`: sed \S+ e2e/kind/kube-proxy\.yaml \| kubectl apply -f -$`), namesCluster},
		{re(`: /tmp/nftproxy-cluster/kubectl `), kubectls}, // of e2e/cluster, with that cluster's configuration
		{re(`: kubectl `), kubectls},
		// Tools of others, which are not here, with the names of our files; and what would change the machine.
		{re(`: (skopeo copy|crane push|ctr|kind load|docker load|grep -o 'sha256:) ?.*`), namesOurImage},
		{re(`docs/kernels\.md: modprobe nf_conntrack$`), func(*readers, line) error { return nil }},
		{re(`docs/kernels\.md: echo nf_conntrack > /etc/modules-load\.d/nf_conntrack\.conf$`), func(*readers, line) error { return nil }},
	}
}

// Every command of README.md and docs/ is played, as it stands there but for paths of a real node. A new one that no way
// fits fails.
func TestPages(t *testing.T) {
	r := newReaders(t)
	played := 0
	for _, l := range linesOf(t, r.root) {
		how := func() *way {
			for _, w := range ways() {
				if w.is.MatchString(l.String()) {
					return &w
				}
			}
			return nil
		}()
		if how == nil {
			t.Errorf("%s: nothing says how this is played (ways, in e2e/pages_test.go)", l)
			continue
		}
		if err := how.play(r, l); err != nil {
			t.Errorf("%s: %v", l, err)
		}
		played++
	}
	if played < 40 {
		t.Errorf("only %d commands were found", played)
	}
	t.Logf("%d commands", played)
}

func newReaders(t *testing.T) *readers {
	t.Helper()
	lab.RequireRoot(t)
	c := &cluster{Net: lab.Start(t, lab.Options{Nodes: 3, PodsPerNode: 1}), t: t}
	root := lab.Must(filepath.Abs(".."))(t)
	r := &readers{cluster: c, root: root, bin: lab.Must(lab.NftproxyBinary())(t), dir: t.TempDir()}
	cp := shared.ControlPlane(t)
	r.api = lab.Must(c.Attach(cp))(t)
	c.Source = cp
	c.addNodes()
	lab.Must(lab.StartProxy(c.Node(1), lab.ProxySpec{Kind: lab.NFTProxy, Manifests: root + "/examples", ByFlags: true}))(t)
	p := lab.Must(lab.StartProxy(c.Node(2), lab.ProxySpec{Kind: lab.NFTProxy, API: r.api}))(t)
	for _, f := range flagsOf(t, p) {
		if path, ok := strings.CutPrefix(f, "--config="); ok {
			r.config = path
		}
	}
	for _, name := range []string{"examples", "manifests"} {
		if err := os.Symlink(filepath.Join(root, name), filepath.Join(r.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(r.dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(r.bin, filepath.Join(r.dir, "bin/nftproxy")); err != nil {
		t.Fatal(err)
	}
	return r
}

var (
	fences  = regexp.MustCompile("(?ms)^```(sh|bash|console)\n(.*?)^```")
	comment = regexp.MustCompile(`\s+# .*$`)
)

// linesOf collects the commands of all pages. In a block with prompts what has none is output.
func linesOf(t *testing.T, root string) (out []line) {
	t.Helper()
	pages := append([]string{filepath.Join(root, "README.md")}, lab.Must(filepath.Glob(root+"/docs/*.md"))(t)...)
	for _, page := range pages {
		name := strings.TrimPrefix(page, root+"/")
		for _, block := range fences.FindAllStringSubmatch(string(lab.Must(os.ReadFile(page))(t)), -1) {
			text := strings.ReplaceAll(block[2], "\\\n", "")
			prompts := regexp.MustCompile(`(?m)^(\$|node-\d#) `).MatchString(text)
			for _, l := range strings.Split(text, "\n") {
				command, prompted := strings.CutPrefix(l, "$ ")
				if prompts && !prompted && !strings.HasPrefix(l, "node-") || strings.TrimSpace(l) == "" {
					continue
				}
				out = append(out, line{name, strings.Join(strings.Fields(comment.ReplaceAllString(command, "")), " ")})
			}
		}
	}
	return out
}

// shell runs a line on a node, in the directory of files, after what differs there was replaced.
func (r *readers) shell(n *lab.Node, text string) (string, error) {
	text = strings.NewReplacer("/var/lib/kube-proxy/config.conf", r.config, "/etc/iproute2/rt_protos", "rt_protos",
		"proto nftproxy", "proto 110", "$(hostname)", n.Name).Replace(text)
	if left, right, piped := strings.Cut(text, " | "); piped {
		if _, err := exec.LookPath(strings.Fields(right)[0]); err != nil {
			text = left // a tool of others, which is not here
		}
	}
	return n.Run("bash", "-ec", fmt.Sprintf("set -o pipefail; cd %s; PATH=$PWD/bin:$PATH; %s", r.dir, text))
}

func onServing(r *readers, l line) error {
	out, err := r.shell(r.Node(1), l.text)
	if strings.Contains(l.text, "nftproxy explain ") && isAnswer(err) {
		err = nil // refused, as no proxy serves it here
	}
	if err == nil && out == "" && !strings.ContainsAny(l.text, "<>|") && !strings.HasPrefix(l.text, "ip ") {
		return fmt.Errorf("prints nothing")
	}
	return err
}

// onAPIServed plays what compares with the API server, on the node that is served from it.
func onAPIServed(r *readers, l line) error {
	_, err := r.shell(r.Node(2), strings.ReplaceAll(l.text, "=node-1", "=node-2"))
	return err
}

// onSpare plays what takes our rules away, where there are none: that it does so other tests see.
func onSpare(r *readers, l line) error {
	_, err := r.shell(r.Node(3), "nftproxy cleanup; "+l.text)
	return err
}

// traces shortens the time: nothing is sent here. TestStories sees a real trace.
func traces(r *readers, l line) error {
	text := strings.ReplaceAll(l.text, " --timeout 1m", "") + " --timeout 200ms"
	if _, err := r.shell(r.Node(1), text); err == nil || !strings.Contains(err.Error(), "no packet that matches was seen") {
		return fmt.Errorf("nothing is sent, and yet: %w", err)
	}
	return nil
}

// serves lets the proxy run until its table is there, and ends it. The limit on conntrack entries is the host's.
func serves(r *readers, l line) error {
	text := l.text
	if !strings.Contains(text, "--config") {
		text += " --conntrack-max-per-core=0 --oom-score-adj=0"
	}
	_, err := r.shell(r.Node(3), "nftproxy cleanup; "+text+` & P=$!
for i in $(seq 1000); do nft list map ip6 nftproxy services >/dev/null 2>&1 && break; kill -0 $P; sleep 0.01; done
nft list map ip nftproxy services; kill $P; wait $P`)
	return err
}

func unshares(r *readers, l line) error {
	out, err := r.shell(r.Node(3), strings.Replace(l.text, "timeout 5", "timeout 2", 1))
	if err == nil && !strings.Contains(out, "default/web:http") {
		return fmt.Errorf("the examples are not served:\n%s", out)
	}
	return err
}

// execs runs what a page runs in the proxy's container.
func execs(r *readers, l line) error {
	_, command, _ := strings.Cut(l.text, " -- ")
	return onServing(r, line{l.page, command})
}

// kubectls runs kubectl on a real API server. Nobody runs pods there, so that a rollout is looked at and not waited for.
func kubectls(r *readers, l line) error {
	r.theirDaemonSet()
	text := strings.ReplaceAll(l.text, "rollout status", "rollout status --watch=false")
	text = strings.ReplaceAll(text, "manifests/", r.root+"/manifests/")
	var args []string
	for _, word := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(text, -1)[1:] {
		args = append(args, strings.Trim(word, "'"))
	}
	_, err := r.api.ControlPlane.Kubectl(args...)
	return err
}

// namesCluster plays the left side of a pipe into kubectl: the cluster made by kind is not here.
func namesCluster(r *readers, l line) error {
	left, _, _ := strings.Cut(l.text, " | ")
	out, err := exec.Command("sh", "-c", "cd "+r.root+" && "+left).Output()
	if err == nil && !strings.Contains(string(out), "server: https://dev-control-plane:6443\n") {
		return fmt.Errorf("the API server is not that of the cluster dev:\n%s", out)
	}
	return err
}

// theirDaemonSet makes kube-proxy's, as kubeadm has it, unless it is there.
func (r *readers) theirDaemonSet() {
	r.t.Helper()
	api := r.api.ControlPlane.Client.AppsV1().DaemonSets("kube-system")
	if _, err := api.Get(r.t.Context(), "kube-proxy", metav1.GetOptions{}); err == nil {
		return
	}
	labels := map[string]string{"k8s-app": "kube-proxy"}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "kube-proxy", Image: "kube-proxy"}}}},
	}}
	if _, err := api.Create(r.t.Context(), set, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _, _ = r.api.ControlPlane.Kubectl("-n", "kube-system", "delete", "daemonset", "kube-proxy") })
}

// makes looks for the targets in the Makefile: to make them here would build everything anew.
func makes(r *readers, l line) error {
	makefile, err := os.ReadFile(filepath.Join(r.root, "Makefile"))
	if err != nil {
		return err
	}
	for _, target := range strings.Fields(l.text)[1:] {
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(target) + `:`).Match(makefile) {
			return fmt.Errorf("the Makefile has no target %s", target)
		}
	}
	return nil
}

var goTest = regexp.MustCompile(`^go test (?:-C \S+ )?(\./\S+|\.)(?:.* -run '?([^' ]+)'?)?`)

// goes looks for the packages and tests.
func goes(r *readers, l line) error {
	if m := regexp.MustCompile(` -C (\S+)`).FindStringSubmatch(l.text); m != nil {
		_, err := os.Stat(filepath.Join(r.root, m[1]))
		return err
	}
	m := goTest.FindStringSubmatch(l.text)
	if m == nil {
		return fmt.Errorf("not understood")
	}
	files, err := filepath.Glob(filepath.Join(r.root, m[1], "*_test.go"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("no tests in %s", m[1])
	}
	for _, alternative := range strings.Split(m[2], "|") {
		name := strings.Trim(alternative, "^$")
		if name == "" {
			continue // no test, for benchmarks alone
		}
		found := false
		for _, f := range files {
			text, err := os.ReadFile(f)
			found = found || err == nil && strings.Contains(string(text), "func "+name)
		}
		if !found {
			return fmt.Errorf("%s has no test %s", m[1], alternative)
		}
	}
	return nil
}

// namesOurImage holds names of files against what `make image` writes.
func namesOurImage(r *readers, l line) error {
	makefile, err := os.ReadFile(filepath.Join(r.root, "Makefile"))
	if err != nil {
		return err
	}
	version := regexp.MustCompile(`(?m)^VERSION \?= (\S+)`).FindStringSubmatch(string(makefile))
	if strings.Contains(l.text, "nftproxy-v") && !strings.Contains(l.text, "nftproxy-"+version[1]+".oci.tar") {
		return fmt.Errorf("the image is of version %s", version[1])
	}
	return nil
}
