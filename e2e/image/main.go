// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Command image packs static binaries into one OCI image for several platforms, without a container engine, on top of
// nothing. The same binaries give the same bytes: times are zero, orders are fixed.
//
//	image -name docker.io/library/nftproxy -version v0.1.0 -revision 0123456789ab -out bin/image amd64=bin/linux-amd64/nftproxy arm64=...
//
// writes below -out
//
//	oci/                            the image as an OCI layout (image-spec 1.1)
//	nftproxy-v0.1.0.oci.tar         the same as one file: for ctr images import, skopeo, crane, docker load
//	nftproxy-v0.1.0-amd64.spdx.json what is in the binary (SPDX 2.3), which is in the image too; one for each platform
package main

import (
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// maxCompressed is what an image of one platform may have: a node that is started should not wait for its proxy.
const maxCompressed = 25 << 20

// options are the flags.
type options struct {
	name, version, revision, out, licence string
}

func main() {
	var o options
	flag.StringVar(&o.name, "name", "docker.io/library/nftproxy", "name of the image, for tools that import the tar file")
	flag.StringVar(&o.version, "version", "", "tag of the image")
	flag.StringVar(&o.revision, "revision", "", "commit that the binaries were built from, for the image's label")
	flag.StringVar(&o.out, "out", "", "directory to write to")
	flag.StringVar(&o.licence, "license", "", "file with the licence, which is put into the image")
	flag.Parse()
	if err := run(o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run makes everything.
func run(o options, platforms []string) error {
	if o.version == "" || o.out == "" || o.licence == "" || len(platforms) == 0 {
		return errors.New("-version, -out, -license and one ARCH=BINARY at least are needed")
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	licence, err := os.ReadFile(o.licence)
	if err != nil {
		return err
	}
	index := v1.ImageIndex(mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	for _, p := range platforms {
		arch, path, ok := strings.Cut(p, "=")
		if !ok {
			return fmt.Errorf("%s: must be ARCH=BINARY", p)
		}
		if index, err = o.add(index, arch, path, licence); err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
	}
	return o.write(index)
}

// add makes the image of one platform.
func (o options) add(index v1.ImageIndex, arch, path string, licence []byte) (v1.ImageIndex, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := fit(info, arch); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	binary, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	bom, err := sbom(info, o.version, arch, binary)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(o.out, fmt.Sprintf("nftproxy-%s-%s.spdx.json", o.version, arch)), bom, 0o644); err != nil {
		return nil, err
	}
	image, err := o.image(arch, []entry{
		{path: "LICENSE", mode: 0o644, data: licence},
		{path: "nftproxy", mode: 0o755, data: binary},
		{path: "sbom.spdx.json", mode: 0o644, data: bom},
		{path: "usr", mode: 0o755, dir: true},
		{path: "usr/local", mode: 0o755, dir: true},
		{path: "usr/local/bin", mode: 0o755, dir: true},
		// Where kubeadm's DaemonSet looks for its program.
		{path: "usr/local/bin/kube-proxy", mode: 0o777, link: "/nftproxy"},
		// For kubectl exec.
		{path: "usr/local/bin/nftproxy", mode: 0o777, link: "/nftproxy"},
	})
	if err != nil {
		return nil, err
	}
	size, err := compressed(image)
	if err != nil {
		return nil, err
	}
	fmt.Printf("linux/%s: %d modules, %.1f MiB, compressed %.1f MiB\n", arch, len(info.Deps), mib(int64(len(binary))), mib(size))
	if size > maxCompressed {
		return nil, fmt.Errorf("%.1f MiB compressed, at most %.1f", mib(size), mib(maxCompressed))
	}
	return mutate.AppendManifests(index, mutate.IndexAddendum{
		Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
	}), nil
}

// fit reports whether a binary is for a platform and needs nothing of it but a kernel.
func fit(info *buildinfo.BuildInfo, arch string) error {
	want := map[string]string{"GOOS": "linux", "GOARCH": arch, "CGO_ENABLED": "0", "-trimpath": "true"}
	for _, s := range info.Settings {
		if w, ok := want[s.Key]; ok && w != s.Value {
			return fmt.Errorf("built with %s=%s, not %s", s.Key, s.Value, w)
		}
		delete(want, s.Key)
	}
	if len(want) > 0 {
		return fmt.Errorf("built without %v", want)
	}
	return nil
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// write writes the layout and the tar file of it.
func (o options) write(index v1.ImageIndex) error {
	dir := filepath.Join(o.out, "oci")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	top := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index, Descriptor: v1.Descriptor{
		Annotations: map[string]string{
			"io.containerd.image.name":          o.name + ":" + o.version,
			"org.opencontainers.image.ref.name": o.version,
		},
	}})
	if _, err := layout.Write(dir, top); err != nil {
		return fmt.Errorf("layout: %w", err)
	}
	file := filepath.Join(o.out, "nftproxy-"+o.version+".oci.tar")
	if err := archive(dir, file); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	digest, err := index.Digest()
	if err == nil {
		fmt.Printf("%s: %s:%s %s\n", file, o.name, o.version, digest)
	}
	return err
}
