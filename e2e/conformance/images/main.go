// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Command images packs directories into container images that share layers, and writes them as one archive that
// `ctr images import`, `docker load` and `kind load image-archive` read. No container engine is needed.
//
//	images -out images.tar SPEC...
//
// A SPEC is NAME=LAYER[+LAYER...][,entrypoint=ARG...][,cmd=ARG...][,user=UID]: the name with registry and tag, the
// directories whose content becomes the layers, lowest first, and how a container is run. Arguments are separated by
// spaces.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	out := flag.String("out", "", "archive to write")
	flag.Parse()
	if err := run(*out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// run packs every SPEC and writes the archive.
func run(out string, specs []string) error {
	if out == "" || len(specs) == 0 {
		return errors.New("-out and one SPEC at least are needed")
	}
	layers := cache{}
	images := map[name.Tag]v1.Image{}
	for _, text := range specs {
		s, err := parse(text)
		if err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
		tag, err := name.NewTag(s.name, name.StrictValidation)
		if err != nil {
			return err
		}
		if images[tag], err = s.image(layers); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if err := tarball.MultiWriteToFile(out, images); err != nil {
		return fmt.Errorf("%s: %w", out, err)
	}
	return nil
}

// spec is what one image is made of.
type spec struct {
	name            string
	layers          []string
	entrypoint, cmd []string
	user            string
}

// parse reads a SPEC.
func parse(text string) (spec, error) {
	parts := strings.Split(text, ",")
	head, layers, ok := strings.Cut(parts[0], "=")
	if !ok || head == "" || layers == "" {
		return spec{}, errors.New("must begin with NAME=LAYER")
	}
	s := spec{name: head, layers: strings.Split(layers, "+"), user: "0:0"}
	for _, p := range parts[1:] {
		key, value, _ := strings.Cut(p, "=")
		switch key {
		case "entrypoint":
			s.entrypoint = strings.Fields(value)
		case "cmd":
			s.cmd = strings.Fields(value)
		case "user":
			s.user = value
		default:
			return spec{}, fmt.Errorf("unknown key %q", key)
		}
	}
	return s, nil
}

// path is where programs are found in a container.
const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// image makes the image of a spec.
func (s spec) image(layers cache) (v1.Image, error) {
	image := empty.Image
	for _, dir := range s.layers {
		layer, err := layers.of(dir)
		if err != nil {
			return nil, err
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			return nil, err
		}
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", "amd64"
	file.Config = v1.Config{Entrypoint: s.entrypoint, Cmd: s.cmd, Env: []string{path}, User: s.user, WorkingDir: "/"}
	return mutate.ConfigFile(image, file)
}
