// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// packImage makes the image of the binary under test and returns where it is.
func packImage(t *testing.T, tool string) string {
	t.Helper()
	out := t.TempDir()
	cmd := exec.Command(tool, "-version", "v0.0.1", "-revision", "0123456789ab", "-license", filepath.Join(top, "LICENSE"), "-out", out,
		runtime.GOARCH+"="+lab.Must(lab.NftproxyBinary())(t))
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("image: %v\n%s", err, text)
	}
	return out
}

// at is a port of a ClusterIP.
func at(f lab.Family, index int, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(lab.ClusterIP(f, index), port)
}

// imageTool builds the tool that make image runs.
func imageTool(t *testing.T) string {
	t.Helper()
	tool := filepath.Join(t.TempDir(), "image")
	if text, err := exec.Command("go", "build", "-C", filepath.Join(top, "e2e", "image"), "-o", tool, ".").CombinedOutput(); err != nil {
		t.Fatalf("build the tool: %v\n%s", err, text)
	}
	return tool
}

// descriptor points to a blob of an OCI layout.
type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

// blob reads what a descriptor points to.
func blob(t *testing.T, layout string, d descriptor) []byte {
	t.Helper()
	data := read(t, layout, "blobs", "sha256", strings.TrimPrefix(d.Digest, "sha256:"))
	if int64(len(data)) != d.Size {
		t.Fatalf("%s has %d bytes, not %d", d.Digest, len(data), d.Size)
	}
	return []byte(data)
}

// manifest is an index or the manifest of an image.
type manifest struct {
	Manifests []descriptor `json:"manifests"`
	Config    descriptor   `json:"config"`
	Layers    []descriptor `json:"layers"`
}

func parse[T any](t *testing.T, data []byte) (out T) {
	t.Helper()
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// unpack makes a root file system of the only image of a layout, and returns the size of its layer.
func unpack(t *testing.T, layout, root string) int64 {
	t.Helper()
	m := parse[manifest](t, []byte(read(t, layout, "index.json")))
	for len(m.Manifests) == 1 {
		m = parse[manifest](t, blob(t, layout, m.Manifests[0]))
	}
	if len(m.Layers) != 1 || len(m.Manifests) != 0 {
		t.Fatalf("manifest %+v", m)
	}
	config := parse[struct {
		Architecture, OS string
		Config           struct {
			Entrypoint []string
			Labels     map[string]string
		}
	}](t, blob(t, layout, m.Config))
	if config.Architecture != runtime.GOARCH || config.OS != "linux" || len(config.Config.Entrypoint) != 1 || config.Config.Entrypoint[0] != "/nftproxy" {
		t.Errorf("config %+v", config)
	}
	if got := config.Config.Labels["org.opencontainers.image.revision"]; got != "0123456789ab" {
		t.Errorf("revision %q", got)
	}
	zipped, err := gzip.NewReader(bytes.NewReader(blob(t, layout, m.Layers[0])))
	if err != nil {
		t.Fatal(err)
	}
	files := tar.NewReader(zipped)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return m.Layers[0].Size
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := extract(h, files, filepath.Join(root, h.Name)); err != nil {
			t.Fatalf("%s: %v", h.Name, err)
		}
	}
}

func extract(h *tar.Header, from io.Reader, to string) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return os.MkdirAll(to, 0o755)
	case tar.TypeSymlink:
		return os.Symlink(h.Linkname, to)
	}
	if h.ModTime.Unix() != 0 || h.Uid != 0 || h.Gid != 0 {
		return fmt.Errorf("of %s, user %d, group %d", h.ModTime, h.Uid, h.Gid)
	}
	data, err := io.ReadAll(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, os.FileMode(h.Mode)) // #nosec G110: our own
}

// TestImage: the same binary gives the same bytes, and what is in the image serves traffic with what the manifests give
// it.
func TestImage(t *testing.T) {
	tool := imageTool(t)
	one, two := packImage(t, tool), packImage(t, tool)
	same := 0
	for _, name := range []string{"nftproxy-v0.0.1.oci.tar", "nftproxy-v0.0.1-" + runtime.GOARCH + ".spdx.json"} {
		if read(t, one, name) == read(t, two, name) {
			same++
		}
	}
	if same != 2 {
		t.Errorf("only %d of 2 files are the same bytes the second time", same)
	}
	n := lab.Start(t, lab.Options{Nodes: 1})
	root := filepath.Join(n.Dir(), "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	size := unpack(t, filepath.Join(one, "oci"), root)
	t.Logf("layer of %d bytes", size)
	if size > 25<<20 {
		t.Errorf("%d bytes compressed", size)
	}
	for _, name := range []string{"kube-proxy", "nftproxy"} {
		if to, err := os.Readlink(filepath.Join(root, "usr/local/bin", name)); err != nil || to != "/nftproxy" {
			t.Errorf("%s is %q: %v", name, to, err)
		}
	}
	t.Run("bill of materials", func(t *testing.T) { billOfMaterials(t, root) })
	t.Run("serves", func(t *testing.T) { serves(t, n, root) })
}

// billOfMaterials: every module that the go tool finds in the binary is listed.
func billOfMaterials(t *testing.T, root string) {
	doc := parse[struct {
		Version  string `json:"spdxVersion"`
		Packages []struct{ SPDXID, Name, VersionInfo string }
	}](t, []byte(read(t, root, "sbom.spdx.json")))
	if doc.Version != "SPDX-2.3" {
		t.Errorf("version %s", doc.Version)
	}
	have := map[string]bool{}
	for _, p := range doc.Packages {
		have[p.Name+" "+p.VersionInfo] = true
	}
	out, err := exec.Command("go", "version", "-m", filepath.Join(root, "nftproxy")).Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := regexp.MustCompile(`(?m)^\tdep\t(\S+)\t(\S+)`).FindAllStringSubmatch(string(out), -1)
	if len(deps) < 10 || len(doc.Packages) != len(deps)+2 {
		t.Errorf("%d packages, %d modules beside the program and Go's library", len(doc.Packages), len(deps))
	}
	for _, d := range deps {
		if !have[d[1]+" "+d[2]] {
			t.Errorf("lacks %s %s", d[1], d[2])
		}
	}
}

// serves runs the image's own file system with CAP_NET_ADMIN alone.
func serves(t *testing.T, n *lab.Net, root string) {
	dir := lab.ManifestDir(filepath.Join(n.Dir(), "manifests"))
	if err := os.MkdirAll(string(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	node, pod := n.Node(1), n.Pod(1, 1)
	lab.Must(pod.Serve("web", 8080, lab.TCP, lab.UDP))(t)
	svc := lab.WithNodePorts(lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080), lab.Port(lab.UDP, 80, 8080)), 30080)
	if err := dir.Apply(t.Context(), lab.Objects(svc, lab.NewSlices(svc, pod.Endpoint()), lab.NewNode(node))...); err != nil {
		t.Fatal(err)
	}
	spec := lab.ProxySpec{
		Kind: lab.NFTProxy, Manifests: string(dir), Binary: lab.Must(os.Executable())(t), Env: []string{jailVar + "=" + root},
		Config: map[string]any{"oomScoreAdj": -999}, // not allowed, and not fatal
		Ready:  []lab.Probe{{From: n.Pod(1, 2).Host, Proto: lab.TCP, To: at(lab.IPv4, 10, 80)}},
	}
	if _, err := lab.StartProxy(node, spec); err == nil || !strings.Contains(err.Error(), "--init-only") {
		t.Fatalf("without the init container: %v; want what to do", err)
	}
	// The init container, which is privileged.
	config := filepath.Join(n.Dir(), "nftproxy-"+node.Name+".conf")
	if out, err := node.Run(lab.Must(lab.NftproxyBinary())(t), "--config="+config, "--init-only"); err != nil {
		t.Fatalf("init: %v\n%s", err, out)
	}
	proxy := lab.Must(lab.StartProxy(node, spec))(t)
	for _, f := range lab.Families() {
		for _, proto := range []lab.Proto{lab.TCP, lab.UDP} {
			if r := n.Pod(1, 2).Ask(proto, at(f, 10, 80)); r.Backend != "web" {
				t.Errorf("%s over IPv%s: %s", proto, f, r)
			}
		}
	}
	status := read(t, "/proc", fmt.Sprint(proxy.PID()), "status")
	for _, want := range []string{"CapEff:\t0000000000001000", "CapBnd:\t0000000000001000", "NoNewPrivs:\t1"} {
		if !strings.Contains(status, want) {
			t.Errorf("the proxy's status lacks %q:\n%s", want, status)
		}
	}
	if err := proxy.Stop(); err != nil {
		t.Error(err)
	}
}
