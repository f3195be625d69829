// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// cache holds the layer of each directory, so that images share it.
type cache map[string]v1.Layer

// of is the layer of a directory. It is compressed lightly: archives of this command never leave the machine.
func (c cache) of(dir string) (v1.Layer, error) {
	if l, ok := c[dir]; ok {
		return l, nil
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(pack(w, dir)) }()
		return r, nil
	}, tarball.WithCompressedCaching, tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	c[dir] = layer
	return layer, nil
}

// pack writes a directory as a tar stream: in lexical order, of user and group 0, from 1970, so that the same content gives
// the same bytes.
func pack(w io.Writer, dir string) error {
	t := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		return add(t, dir, path, d)
	})
	return errors.Join(err, t.Close())
}

// add writes one file, directory or symbolic link; a device or socket is an error.
func add(t *tar.Writer, dir, path string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	var target string
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	if h.Name = filepath.ToSlash(rel); d.IsDir() {
		h.Name += "/"
	}
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	h.ModTime, h.AccessTime, h.ChangeTime = time.Unix(0, 0).UTC(), time.Time{}, time.Time{}
	h.Format = tar.FormatPAX
	if err := t.WriteHeader(h); err != nil {
		return fmt.Errorf("%s: %w", rel, err)
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return errors.Join(err, f.Close())
}
