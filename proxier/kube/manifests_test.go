// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

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
	m, err := NewManifests(d.dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	m.patrol = time.Hour // what is not noticed at once is not noticed
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
	if s, ok := d.get(ref(KindService, "default/"+name)).(*Service); ok {
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
	return d.problem(Ref{KindFile, Name{"", d.path(name)}})
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
	s := d.get(ref(KindEndpointSlice, "default/a-1")).(*EndpointSlice)
	compare(t, []SlicePort{{Sym{}, TCP, 8080}}, s.Ports)
	compare(t, Name{"default", "a"}, s.Service)
	if d.get(ref(KindNode, "n1")) == nil || d.get(ref(KindNode, "n2")) != nil || d.get(ref(KindServiceCIDR, "kubernetes")) == nil {
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
		t.Errorf("told %q, want %q", log, want)
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
			t.Errorf("told %q", log)
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
		t.Errorf("told %q, want %q\n%s", log, want, d.state())
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
	bRef := ref(KindService, "default/b")
	d.take()

	d.write("a.yaml", svc("a", "10.96.0.4")+"---\n"+strings.Replace(b, "port: 80", "port: eighty", 1)+"---\n"+c)
	d.untilIP("a", "10.96.0.4")
	want := d.path("a.yaml") + ": document 2: Service default/b: spec.ports.port: string instead of int32: a value of the wrong type"
	if got := d.problem(bRef); got != want || d.ip("b") != "10.96.0.2" {
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
	in(d.problem(ref(KindService, "default/a")), `a.yaml: document 1: Service default/a: spec.externalIPs[1]: "x": not an IP address`,
		"a.yaml: document 1: Service default/a: spec.nonsense: an unknown field")
	in(d.problem(ref(KindService, "default/b")), "kind")
	in(d.fileProblem("c.yaml"), `document 1: Service of "v2" instead of "v1"`, "document 2: Service default/a\nb: metadata.name: not a valid name",
		"document 3: kind and apiVersion must be given", "document 4: ",
		"document 5: Service default/: metadata.name: bool instead of string") // y is true in YAML 1.1
	in(d.fileProblem("d.json"), "document 2: byte ")
	d.write("a.yaml", svc("a", "10.96.0.1"))
	d.until("no problem", func() bool { return d.problem(ref(KindService, "default/a")) == "" })
}

// The first file by name wins, whichever came first; when it goes the next one counts.
func TestManifestsTwice(t *testing.T) {
	d := startManifests(t, map[string]string{"b.yaml": svc("x", "10.96.0.2")})
	x := ref(KindService, "default/x")
	d.write("c.yaml", svc("x", "10.96.0.3")+"---\n"+svc("z", "10.96.0.7")+"---\n"+svc("z", "10.96.0.8"))
	want := fmt.Sprintf("%s: document 1: Service default/x: metadata.name: also given in %s: document 1: given twice, the first one counts",
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
		d.until("a problem", func() bool { return d.problem(Ref{KindFile, Name{"", d.dir}}) != "" })
		time.Sleep(2 * absence) // in which a file that is missing in a directory that is there would be gone
		if d.ip("a") != "10.96.0.1" {
			t.Errorf("%s: %s", how.name, d.state())
		}
		d.must(os.Mkdir(d.dir, 0o755))
		d.write("a.yaml", svc("a", "10.96.0.2"))
		d.untilIP("a", "10.96.0.2")
		if d.problem(Ref{KindFile, Name{"", d.dir}}) != "" {
			t.Errorf("%s: %s", how.name, d.state())
		}
		d.must(os.Remove(d.path("a.yaml"))) // it is watched again
		d.untilIP("a", "")
	}
}

// A document whose text has not changed is not read again, wherever it moved.
func TestLibraryReadsWhatChanged(t *testing.T) {
	l := newLibrary(newRecorder(t), "n1")
	text := func(parts ...string) []content {
		return []content{{path: "a.yaml", data: []byte(strings.Join(parts, "---\n"))}}
	}
	a, b, c := svc("a", "10.96.0.1"), svc("b", "10.96.0.2"), svc("c", "10.96.0.3")
	l.update(text(a, b, c))
	before := slices.Clone(l.files["a.yaml"].claims)
	l.update(text(c, a, svc("b", "10.96.0.9")))
	after := l.files["a.yaml"].claims
	if after[0] != before[2] || after[1] != before[0] || after[2] == before[1] || after[0].document != 1 {
		t.Errorf("claims %v became %v", before, after)
	}
}

func TestNewManifests(t *testing.T) {
	if _, err := NewManifests(filepath.Join(t.TempDir(), "none"), "n1"); err == nil {
		t.Error("a directory that is not there")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := NewManifests(file, "n1"); err == nil {
		t.Error("a file for a directory")
	}
}
