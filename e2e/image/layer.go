// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// entry is a file, a directory or a symbolic link of the image.
type entry struct {
	path string
	mode int64
	data []byte
	dir  bool
	link string
}

// header is the entry as a tar header: of user and group 0, from 1970.
func (e entry) header() *tar.Header {
	h := &tar.Header{Name: e.path, Mode: e.mode, ModTime: time.Unix(0, 0).UTC(), Format: tar.FormatUSTAR}
	switch {
	case e.dir:
		h.Typeflag, h.Name = tar.TypeDir, e.path+"/"
	case e.link != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
	default:
		h.Typeflag, h.Size = tar.TypeReg, int64(len(e.data))
	}
	return h
}

// pack writes entries as a tar stream.
func pack(w io.Writer, entries []entry) error {
	t := tar.NewWriter(w)
	for _, e := range entries {
		if err := t.WriteHeader(e.header()); err != nil {
			return err
		}
		if _, err := t.Write(e.data); err != nil {
			return err
		}
	}
	return t.Close()
}

// image makes the image of one platform, of one layer.
func (o options) image(arch string, entries []entry) (v1.Image, error) {
	var raw bytes.Buffer
	if err := pack(&raw, entries); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching, tarball.WithCompressionLevel(gzip.BestCompression))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer,
		History: v1.History{Created: v1.Time{Time: time.Unix(0, 0).UTC()}, CreatedBy: "nftproxy make image"}})
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, o.config(image, arch))
}

// config says how a container of the image is run.
func (o options) config(image v1.Image, arch string) *v1.ConfigFile {
	file, err := image.ConfigFile()
	if err != nil {
		file = &v1.ConfigFile{} // Digest fails with the same error
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", arch
	file.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	file.Config = v1.Config{
		Entrypoint: []string{"/nftproxy"},
		Env:        []string{"PATH=/usr/local/bin"},
		User:       "0:0",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "nftproxy",
			"org.opencontainers.image.version":  o.version,
			"org.opencontainers.image.revision": o.revision,
			"org.opencontainers.image.source":   "https://github.com/nftproxy/nftproxy",
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return file
}

// compressed is how much of an image is transferred.
func compressed(image v1.Image) (int64, error) {
	layers, err := image.Layers()
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, l := range layers {
		n, err := l.Size()
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// archive packs a directory into a tar file; WalkDir goes in lexical order.
func archive(dir, file string) error {
	var entries []entry
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			entries = append(entries, entry{path: filepath.ToSlash(name), mode: 0o755, dir: true})
			return nil
		}
		data, err := os.ReadFile(path)
		entries = append(entries, entry{path: filepath.ToSlash(name), mode: 0o644, data: data})
		return err
	})
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(pack(f, entries), f.Close())
}
