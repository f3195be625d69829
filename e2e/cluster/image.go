// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// imageFile is a file of an image: the machine's file From, or Text, or a symbolic link.
type imageFile struct {
	At, From, Link string
	Text           []byte
}

// writeImage writes an image with one layer, as the archive that docker save makes: for ctr images import.
func writeImage(archive, name string, entrypoint []string, files []imageFile) error {
	layer, err := writeLayer(files)
	if err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	sum := sha256.Sum256(layer)
	type object = map[string]any
	config, err := json.Marshal(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": entrypoint, "Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
		"rootfs": object{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]object{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	text, err := writeLayer([]imageFile{
		{At: "config.json", Text: config}, {At: "layer.tar", Text: layer}, {At: "manifest.json", Text: manifest},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(archive, text, 0o600)
}

// writeLayer makes a tar file; directories are made as they are needed.
func writeLayer(files []imageFile) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	made := map[string]bool{".": true}
	for _, f := range files {
		if err := writeParents(w, made, path.Dir(f.At)); err != nil {
			return nil, err
		}
		head := &tar.Header{Name: f.At, Mode: 0o755, Typeflag: tar.TypeReg}
		text := f.Text
		if f.Link != "" {
			head.Typeflag, head.Linkname = tar.TypeSymlink, f.Link
		} else if f.From != "" {
			var err error
			if text, err = os.ReadFile(f.From); err != nil {
				return nil, err
			}
		}
		head.Size = int64(len(text))
		if err := w.WriteHeader(head); err != nil {
			return nil, err
		}
		if _, err := w.Write(text); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// writeParents writes the directories above a file that are not there yet.
func writeParents(w *tar.Writer, made map[string]bool, at string) error {
	if made[at] {
		return nil
	}
	if err := writeParents(w, made, path.Dir(at)); err != nil {
		return err
	}
	made[at] = true
	return w.WriteHeader(&tar.Header{Name: at + "/", Mode: 0o755, Typeflag: tar.TypeDir})
}

// withLibraries is a program of the machine, with the libraries that ldd says it needs.
func withLibraries(program string) ([]imageFile, error) {
	at, err := exec.LookPath(program)
	if err != nil {
		return nil, err
	}
	if at, err = filepath.EvalSymlinks(at); err != nil {
		return nil, err
	}
	text, err := output("", "ldd", at)
	if err != nil {
		return nil, err
	}
	files := []imageFile{{At: path.Join("usr/sbin", filepath.Base(program)), From: at}}
	for _, lib := range libraries(text) {
		files = append(files, imageFile{At: strings.TrimPrefix(lib, "/"), From: lib})
	}
	return files, nil
}

// libraries reads the output of ldd: "libx.so.1 => /lib/libx.so.1 (0x7f...)", "/lib64/ld-linux-x86-64.so.2 (0x7f...)".
func libraries(text string) (paths []string) {
	for _, f := range strings.Fields(text) {
		if strings.HasPrefix(f, "/") && !slices.Contains(paths, f) {
			paths = append(paths, f)
		}
	}
	return paths
}

// writeImages makes the archives of all images that the cluster itself needs, except nftproxy's, in D/images.
func (d dir) writeImages(pod string) ([]string, error) {
	if err := os.MkdirAll(d.file("images"), 0o755); err != nil {
		return nil, err
	}
	nft, err := withLibraries("nft")
	if err != nil {
		return nil, err
	}
	images := map[string]struct {
		name  string
		entry []string
		files []imageFile
	}{
		"pause.tar":   {pauseImage, []string{"/pod", "pause"}, []imageFile{{At: "pod", From: pod}}},
		"pod.tar":     {podImage, []string{"/pod"}, []imageFile{{At: "pod", From: pod}}},
		"coredns.tar": {corednsImage, []string{"/coredns"}, []imageFile{{At: "coredns", From: d.file("bin", "coredns")}}},
		"kube-proxy.tar": {proxyImage, []string{"/usr/local/bin/kube-proxy"},
			append(nft, imageFile{At: "usr/local/bin/kube-proxy", From: d.file("bin", "kube-proxy")},
				// Without it nft lists tcp as 6, and a restarted kube-proxy removes as foreign what it has just written.
				imageFile{At: "etc/protocols", Text: []byte("tcp 6 TCP\nudp 17 UDP\nsctp 132 SCTP\n")})},
	}
	var archives []string
	for file, i := range images {
		if err := writeImage(d.file("images", file), i.name, i.entry, i.files); err != nil {
			return nil, err
		}
		archives = append(archives, d.file("images", file))
	}
	return archives, nil
}

// load imports archives into a node's containerd.
func (d dir) load(n node, archives ...string) error {
	for _, a := range archives {
		if err := run(d.file("bin", "ctr"), "--address="+d.socket(n), "--namespace=k8s.io", "images", "import", a); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	return nil
}
