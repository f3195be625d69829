// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/proxier/kube"
)

// svc is a minimal Service manifest.
func svc(name, ip string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\nspec:\n  clusterIP: %s\n  ports:\n  - port: 80\n", name, ip)
}

// manifestDir is a directory with a source running on it.
type manifestDir struct {
	*recorder
	dir string
}

func startManifests(t *testing.T, files map[string]string) *manifestDir {
	t.Helper()
	d := &manifestDir{newRecorder(t), t.TempDir()}
	for name, text := range files {
		d.write(name, text)
	}
	m, err := New(d.dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	m.poll = time.Hour // what is not noticed at once is not noticed
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { m.Run(ctx, d.recorder) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	d.until("all kinds synced", d.allSynced)
	return d
}

func (d *manifestDir) path(name string) string { return filepath.Join(d.dir, name) }

func (d *manifestDir) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *manifestDir) write(name, text string) {
	d.t.Helper()
	d.must(os.WriteFile(d.path(name), []byte(text), 0o644))
}

// ip returns the address of a Service in namespace default, or "".
func (d *manifestDir) ip(name string) string {
	if s, ok := d.get(ref(kube.KindService, "default/"+name)).(*kube.Service); ok {
		return s.ClusterIPs[0].String()
	}
	return ""
}

func (d *manifestDir) untilIP(name, ip string) {
	d.t.Helper()
	d.until(fmt.Sprintf("%s at %q", name, ip), func() bool { return d.ip(name) == ip })
}

// problems returns the problem of a file.
func (d *manifestDir) fileProblem(name string) string {
	return d.problem(kube.Ref{Kind: kube.KindFile, Name: kube.Name{Name: d.path(name)}})
}

// sync makes sure that all that was done before has been seen: files are looked at in one order.
func (d *manifestDir) sync() {
	d.t.Helper()
	text := fmt.Sprint("10.99.0.", time.Now().UnixNano()%250+1)
	d.write("zz-sync.yaml", svc("zz-sync", text))
	d.untilIP("zz-sync", text)
	d.must(os.Remove(d.path("zz-sync.yaml")))
	d.untilIP("zz-sync", "")
}

func TestManifestsFormats(t *testing.T) {
	list := `{"kind": "List", "apiVersion": "v1", "items": [` +
		`{"kind":"Service","apiVersion":"v1","metadata":{"name":"d"},"spec":{"clusterIP":"10.96.0.4"}},` +
		`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n2"}}, {"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"}}]}` +
		`{"kind": "ServiceList", "apiVersion": "v1", "items": [{"metadata":{"name":"e"},"spec":{"clusterIP":"10.96.0.5"}}]}`
	d := startManifests(t, map[string]string{
		"a.yaml": "# first\n---\n" + svc("a", "10.96.0.1") + "---\n# nothing\n--- # two\n" + svc("b", "10.96.0.2") + "---\n",
		"b.yml":  "kind: List\napiVersion: v1\nitems:\n- " + strings.ReplaceAll(svc("c", "10.96.0.3"), "\n", "\n  ") + "\n",
		"c.json": list,
		"d.yaml": `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a-1, labels: {kubernetes.io/service-name: a}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.0.1]}]
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/12]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: ignored}
`,
		"e.txt": "not yaml: [", ".hidden.yaml": "not yaml: [", "empty.yaml": "",
	})
	for name, ip := range map[string]string{"a": "10.96.0.1", "b": "10.96.0.2", "c": "10.96.0.3", "d": "10.96.0.4", "e": "10.96.0.5"} {
		if d.ip(name) != ip {
			t.Errorf("Service %s is at %q, want %q", name, d.ip(name), ip)
		}
	}
	s := d.get(ref(kube.KindEndpointSlice, "default/a-1")).(*kube.EndpointSlice)
	if want := []kube.SlicePort{{Proto: kube.TCP, Port: 8080}}; !slices.Equal(s.Ports, want) {
		t.Errorf("ports %v, want %v", s.Ports, want)
	}
	if s.Service.String() != "default/a" {
		t.Errorf("Service %s", s.Service)
	}
	if d.get(ref(kube.KindNode, "n1")) == nil || d.get(ref(kube.KindNode, "n2")) != nil || d.get(ref(kube.KindServiceCIDR, "kubernetes")) == nil {
		t.Error(d.state())
	}
	if len(d.problems) != 0 {
		t.Error(d.problems)
	}
}

func TestManifestsFollow(t *testing.T) {
	d := startManifests(t, map[string]string{"a.yaml": svc("a", "10.96.0.1"), "b.yaml": svc("b", "10.96.0.2")})
	d.take()
	d.write("a.yaml", svc("a", "10.96.0.3"))
	d.untilIP("a", "10.96.0.3")
	d.write("c.json", `{"kind":"Service","apiVersion":"v1","metadata":{"name":"c"},"spec":{"clusterIP":"10.96.0.4"}}`)
	d.untilIP("c", "10.96.0.4")
	d.must(os.Remove(d.path("b.yaml")))
	d.untilIP("b", "")
	d.must(os.Rename(d.path("c.json"), d.path("d.json"))) // never away
	d.write("a.yaml", "# nothing that counts\n"+svc("a", "10.96.0.3"))
	d.sync()
	log := slices.DeleteFunc(d.take(), func(s string) bool { return strings.HasSuffix(s, "zz-sync") })
	want := []string{"set Service default/a", "set Service default/c", "delete Service default/b"}
	if !slices.Equal(log, want) {
		t.Errorf("delivered %q, want %q", log, want)
	}
}

// Editors rename the file, write a new one by its name, and remove the old one; others write a new one and rename it.
// In neither case is the object ever gone.
func TestManifestsEditors(t *testing.T) {
	d := startManifests(t, map[string]string{"a.yaml": svc("a", "10.96.0.1")})
	for i := 2; ; i++ {
		d.take()
		ip := fmt.Sprintf("10.96.0.%d", i)
		start := time.Now()
		d.rewrite("a.yaml", svc("a", ip))
		away := time.Since(start)
		d.untilIP("a", ip)
		if away > absence/2 { // the machine is too busy for this: then it may have been gone, and rightly
			continue
		}
		if log := d.take(); !slices.Equal(log, []string{"set Service default/a"}) {
			t.Errorf("delivered %q", log)
		}
		break
	}
	d.write("a.yaml.tmp", svc("a", "10.96.1.1"))
	d.must(os.Rename(d.path("a.yaml.tmp"), d.path("a.yaml")))
	d.untilIP("a", "10.96.1.1")
	d.write("4913", "")
	d.must(os.Remove(d.path("4913")))
	d.must(os.Chmod(d.path("a.yaml"), 0o600))
	d.sync()
	log := slices.DeleteFunc(d.take(), func(s string) bool { return strings.HasSuffix(s, "zz-sync") })
	if want := []string{"set Service default/a"}; !slices.Equal(log, want) {
		t.Errorf("delivered %q, want %q\n%s", log, want, d.state())
	}
}

// rewrite does what vim does: the file is away for a while, and then there is half of it for a while.
func (d *manifestDir) rewrite(name, text string) {
	d.t.Helper()
	pause := func() { time.Sleep(20 * time.Millisecond) } // for the source to look; not to wait for it
	d.must(os.Rename(d.path(name), d.path(name+"~")))
	pause()
	f, err := os.Create(d.path(name))
	d.must(err)
	_, err = f.WriteString(text[:len(text)/2])
	d.must(err)
	pause()
	_, err = f.WriteString(text[len(text)/2:])
	d.must(err)
	d.must(f.Close())
	d.must(os.Remove(d.path(name + "~")))
}

// A ConfigMap in a pod: the files are links through ..data, which is swapped as a whole.
func TestManifestsConfigMap(t *testing.T) {
	d := startManifests(t, nil)
	version := func(name string, files map[string]string) {
		d.must(os.Mkdir(d.path(name), 0o755))
		for file, text := range files {
			d.write(name+"/"+file, text)
		}
		d.must(os.Symlink(name, d.path("..data_tmp")))
		d.must(os.Rename(d.path("..data_tmp"), d.path("..data")))
	}
	version("..1", map[string]string{"a.yaml": svc("a", "10.96.0.1"), "b.yaml": svc("b", "10.96.0.2")})
	d.must(os.Symlink("..data/a.yaml", d.path("a.yaml")))
	d.must(os.Symlink("..data/b.yaml", d.path("b.yaml")))
	d.untilIP("a", "10.96.0.1")
	d.untilIP("b", "10.96.0.2")

	version("..2", map[string]string{"a.yaml": svc("a", "10.96.0.3")})
	d.must(os.Remove(d.path("b.yaml")))
	d.must(os.RemoveAll(d.path("..1")))
	d.untilIP("a", "10.96.0.3")
	d.untilIP("b", "")
}

// What cannot be read leaves the last good state, of one object or of all that it may have been, and says where.
func TestManifestsLastGood(t *testing.T) {
	a, b, c := svc("a", "10.96.0.1"), svc("b", "10.96.0.2"), svc("c", "10.96.0.3")
	d := startManifests(t, map[string]string{"a.yaml": a + "---\n" + b + "---\n" + c, "b.yaml": svc("other", "10.96.0.9")})
	bRef := ref(kube.KindService, "default/b")
	d.take()

	d.write("a.yaml", svc("a", "10.96.0.4")+"---\n"+strings.Replace(b, "port: 80", "port: eighty", 1)+"---\n"+c)
	d.untilIP("a", "10.96.0.4")
	want := d.path("a.yaml") + ": document 2: "
	if got := d.fileProblem("a.yaml"); !strings.HasPrefix(got, want) || !strings.Contains(got, "spec.ports.port") || d.ip("b") != "10.96.0.2" {
		t.Errorf("problem %q, want %q\n%s", got, want, d.state())
	}

	d.write("a.yaml", svc("a", "10.96.0.5")+"---\nkind: Service\n  metadata: oops\n---\n"+c)
	d.untilIP("a", "10.96.0.5")
	if got := d.fileProblem("a.yaml"); !strings.HasPrefix(got, d.path("a.yaml")+": document 2: ") || d.ip("b") != "10.96.0.2" {
		t.Errorf("file problem %q\n%s", got, d.state())
	}

	d.write("a.yaml", svc("a", "10.96.0.6")+"---\n"+svc("b", "10.96.0.7")) // without c
	d.untilIP("b", "10.96.0.7")
	d.untilIP("c", "")
	if d.fileProblem("a.yaml") != "" || d.problem(bRef) != "" || d.ip("other") != "10.96.0.9" || d.ip("a") != "10.96.0.6" {
		t.Error(d.state())
	}
	d.write("a.yaml", "{")
	d.until("a file problem", func() bool { return d.fileProblem("a.yaml") != "" })
	if d.ip("a") != "10.96.0.6" || d.ip("b") != "10.96.0.7" {
		t.Error(d.state())
	}
	d.must(os.Remove(d.path("a.yaml")))
	d.untilIP("a", "")
	if d.fileProblem("a.yaml") != "" {
		t.Error(d.state())
	}
}

func TestManifestsProblems(t *testing.T) {
	d := startManifests(t, map[string]string{
		"a.yaml": svc("a", "10.96.0.1") + "  nonsense: 1\n  externalIPs: [192.0.2.1, x]\n",
		"b.yaml": "apiVersion: v1\nkind: Service\nkind: Service\nmetadata: {name: b}\nspec: {clusterIP: 10.96.0.2}\n",
		"c.yaml": "apiVersion: v2\nkind: Service\nmetadata: {name: c}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: \"a\\nb\"}\n---\nmetadata: {}\n---\n- 1\n---\n" + svc("y", "10.96.0.9"),
		"d.json": `{"kind":"Service","apiVersion":"v1","metadata":{"name":"d"},"spec":{"clusterIP":"10.96.0.4"}} {"kind":`,
	})
	if d.ip("a") != "10.96.0.1" || d.ip("b") != "10.96.0.2" || d.ip("d") != "10.96.0.4" {
		t.Error(d.state())
	}
	in := func(got string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in %q", want, got)
			}
		}
	}
	in(d.problem(ref(kube.KindService, "default/a")), `a.yaml: document 1: Service default/a: spec.externalIPs[1]: "x": not an IP address`,
		`a.yaml: document 1: Service default/a: unknown field "spec.nonsense"`)
	in(d.problem(ref(kube.KindService, "default/b")), "kind")
	in(d.fileProblem("c.yaml"), `document 1: Service of "v2": unknown apiVersion`, `document 2: Service a\nb: metadata.name: `,
		"document 3: kind and apiVersion must be given", "document 4: ", "document 5: ") // y is true in YAML 1.1
	in(d.fileProblem("d.json"), "document 2: unexpected EOF")
	d.write("a.yaml", svc("a", "10.96.0.1"))
	d.until("no problem", func() bool { return d.problem(ref(kube.KindService, "default/a")) == "" })
}

// The first file by name wins, whichever came first; when it goes the next one counts.
func TestManifestsTwice(t *testing.T) {
	d := startManifests(t, map[string]string{"b.yaml": svc("x", "10.96.0.2")})
	x := ref(kube.KindService, "default/x")
	d.write("c.yaml", svc("x", "10.96.0.3")+"---\n"+svc("z", "10.96.0.7")+"---\n"+svc("z", "10.96.0.8"))
	want := fmt.Sprintf("%s: document 1: Service default/x: also in %s: document 1: defined twice, the first one counts",
		d.path("c.yaml"), d.path("b.yaml"))
	d.until("problem", func() bool { return d.problem(x) != "" })
	if got := d.problem(x); got != want {
		t.Errorf("problem %q, want %q", got, want)
	}
	d.untilIP("z", "10.96.0.7")
	if d.ip("x") != "10.96.0.2" {
		t.Error(d.state())
	}
	d.write("a.yaml", svc("x", "10.96.0.1"))
	d.untilIP("x", "10.96.0.1")
	d.must(os.Remove(d.path("a.yaml")))
	d.untilIP("x", "10.96.0.2")
	d.must(os.Remove(d.path("b.yaml")))
	d.untilIP("x", "10.96.0.3")
	d.until("no problem", func() bool { return d.problem(x) == "" })
	d.write("c.yaml", svc("z", "10.96.0.8"))
	d.untilIP("x", "")
	d.untilIP("z", "10.96.0.8")
}

// When the directory is away nothing is gone; when it is back it counts again.
func TestManifestsDirectoryAway(t *testing.T) {
	for _, how := range []struct {
		name   string
		remove func(string) error
	}{{"renamed", func(dir string) error { return os.Rename(dir, dir+"-away") }}, {"removed", os.RemoveAll}} {
		d := startManifests(t, map[string]string{"a.yaml": svc("a", "10.96.0.1")})
		d.must(how.remove(d.dir))
		d.until("a problem", func() bool { return d.problem(kube.Ref{Kind: kube.KindFile, Name: kube.Name{Name: d.dir}}) != "" })
		time.Sleep(2 * absence) // in which a file that is missing in a directory that is there would be gone
		if d.ip("a") != "10.96.0.1" {
			t.Errorf("%s: %s", how.name, d.state())
		}
		d.must(os.Mkdir(d.dir, 0o755))
		d.write("a.yaml", svc("a", "10.96.0.2"))
		d.untilIP("a", "10.96.0.2")
		if d.problem(kube.Ref{Kind: kube.KindFile, Name: kube.Name{Name: d.dir}}) != "" {
			t.Errorf("%s: %s", how.name, d.state())
		}
		d.must(os.Remove(d.path("a.yaml"))) // it is watched again
		d.untilIP("a", "")
	}
}

// A file that is empty or cut short removes nothing and changes nothing that may be cut (a full disk, or a writer that does not
// rename); when it is complete again it counts.
func TestManifestsCutShort(t *testing.T) {
	var whole strings.Builder
	for i := range 20 {
		fmt.Fprintf(&whole, "---\n%s", svc(fmt.Sprintf("s%02d", i), fmt.Sprintf("10.96.1.%d", i)))
	}
	text := whole.String()
	d := startManifests(t, map[string]string{"a.yaml": text})
	d.take()
	for _, n := range []int{0, 1, 40, 65, 300, 301, 302, len(text) / 2, len(text) - 1} {
		if n > 0 && text[n-1] == '\n' {
			n--
		}
		d.write("a.yaml", text[:n])
		d.until("a file problem", func() bool { return d.fileProblem("a.yaml") != "" })
		if log := slices.DeleteFunc(d.take(), func(s string) bool { return strings.Contains(s, "File") }); len(log) != 0 {
			t.Errorf("%d bytes: %q", n, log)
		}
		d.write("a.yaml", text)
		d.until("no file problem", func() bool { return d.fileProblem("a.yaml") == "" })
	}
	one := `{"kind":"Service","apiVersion":"v1","metadata":{"name":"%s"},"spec":{"clusterIP":"10.96.2.1"}}`
	d.write("c.yaml", fmt.Sprintf("---\n"+one+"\n---\n"+one+"\n", "c", "d"))
	d.untilIP("d", "10.96.2.1")
	d.write("c.yaml", fmt.Sprintf("---\n"+one, "c")) // cut between documents
	d.until("a file problem", func() bool { return d.fileProblem("c.yaml") != "" })
	if d.ip("d") == "" {
		t.Error("a file that was cut between documents removed a Service")
	}
	d.write("c.yaml", fmt.Sprintf(one, "c")) // one JSON value is complete
	d.untilIP("d", "")
	d.write("b.yaml", strings.TrimSpace(svc("b", "10.96.0.2"))) // a new file without the newline counts
	d.untilIP("b", "10.96.0.2")
	d.write("a.yaml", svc("s00", "10.96.1.0")) // complete: the others are gone
	d.untilIP("s01", "")
}

// Names in manifests are checked; other text is escaped before it is shown.
func TestManifestsHostileText(t *testing.T) {
	d := startManifests(t, map[string]string{
		"a.yaml": strings.Replace(svc("a", "10.96.0.1"), "port: 80", `port: 80
    name: "x\e[31m\nfake line"`, 1) + "  \"\\e[2Jfield\": 1\n",
		"b.yaml": strings.Replace(svc("b", "10.96.0.2"), "name: b", `name: "b\e[31m"`, 1),
		"c.yaml": "kind: \"X\\e[31m\"\napiVersion: v1\n",
	})
	if a := d.get(ref(kube.KindService, "default/a")).(*kube.Service); a.Ports[0].Name.String() != `x\x1b[31m\nfake line` {
		t.Errorf("port name %q", a.Ports[0].Name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for ref, problem := range d.problems {
		if strings.ContainsRune(ref.String()+problem, 0x1b) {
			t.Errorf("%q: %q", ref, problem)
		}
	}
	if len(d.objects) != 1 || len(d.problems) != 2 {
		t.Errorf("%v %v", d.objects, d.problems)
	}
}

func TestNew(t *testing.T) {
	if _, err := New(filepath.Join(t.TempDir(), "none"), "n1"); err == nil {
		t.Error("a directory that is not there")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := New(file, "n1"); err == nil {
		t.Error("a file for a directory")
	}
}
