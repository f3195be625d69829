// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Command cluster runs a Kubernetes cluster of real kubelets on one machine: a control plane node and workers in two zones,
// each a network namespace with a containerd and a kubelet of its own, dual stack, with nftproxy from its image and
// manifests, or with real kube-proxy. It needs root, the binaries of e2e/peers, and what e2e/cluster/deps.sh installs.
//
//	cluster [-dir D] [-proxy nftproxy|kube-proxy|none] [-workers N] up    starts it, and returns when pods resolve names
//	cluster [-dir D] down                                                 removes it without a trace
//	cluster [-dir D] load ARCHIVE...                                      brings images to all nodes
//	cluster [-dir D] life                                                 lives through updates and moves under load; the
//	                                                                      cluster must have kube-proxy
//
// The last part of the directory's path is the cluster's name: all that it makes outside of the directory is called by it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

func main() {
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// command does what the arguments say. Flags may stand before and after the name of the command.
func command(args []string) error {
	o := options{}
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	at := flags.String("dir", defaultDir, "directory of the cluster; it is removed with it")
	flags.StringVar(&o.proxy, "proxy", "nftproxy", "nftproxy, kube-proxy or none")
	flags.IntVar(&o.workers, "workers", 3, "number of worker nodes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("up, down, load or life")
	}
	verb := flags.Arg(0)
	if err := flags.Parse(flags.Args()[1:]); err != nil {
		return err
	}
	full, err := filepath.Abs(*at)
	if err != nil {
		return err
	}
	o.dir = dir(full)
	if !dirName.MatchString(o.dir.name()) {
		return fmt.Errorf("-dir %s: its last part must be nftproxy-SOMETHING, as names of namespaces and cgroups begin with it", full)
	}
	switch verb {
	case "up":
		if o.repository, err = repository(); err != nil {
			return err
		}
		if err := up(o); err != nil {
			return fmt.Errorf("%w\n(logs are in %s; 'down' removes what was started)", err, o.dir.file("log"))
		}
		fmt.Printf("cluster with %s: %s get nodes\n", o.proxy, o.dir.file("kubectl"))
		return nil
	case "down":
		return down(o.dir)
	case "life":
		if o.repository, err = repository(); err != nil {
			return err
		}
		return life(o)
	case "load":
		return forAll(planNodes(o.dir.name(), o.workers), func(n node) error { return o.dir.load(n, flags.Args()...) })
	}
	return fmt.Errorf("%s: up, down, load or life", verb)
}

// dirName is what a cluster may be called.
var dirName = regexp.MustCompile(`^nftproxy-[a-z0-9-]+$`)

// repository is the root of this repository, found upwards from the working directory.
func repository() (string, error) {
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := at; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "e2e", "peers", "build.sh")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no e2e/peers/build.sh in or above %s", at)
		}
	}
}
