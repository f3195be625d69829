// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// options say what cluster to start.
type options struct {
	dir        dir
	proxy      string // nftproxy, kube-proxy or none
	workers    int
	repository string // the root of this repository
}

// cluster is one that is being started.
type cluster struct {
	options
	nodes   []node
	cgroups cgroups
	daemons []*daemon
	began   time.Time
}

// up starts a cluster and returns when it can be used: nodes are Ready, and a pod resolves names through the DNS Service.
// It first removes what an earlier one left.
func up(o options) (err error) {
	if err := down(o.dir); err != nil {
		return fmt.Errorf("remove an earlier cluster: %w", err)
	}
	c := &cluster{options: o, nodes: planNodes(o.dir.name(), o.workers), began: time.Now()}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"files", c.writeFiles},
		{"network", func() error { return buildNetwork(o.dir, c.nodes) }},
		{"processes", c.startDaemons},
		{"images", c.loadImages},
		{"API server", c.waitAPI},
		{"objects", c.writeObjects},
		{"controllers and kubelets", c.startControllers},
		{o.proxy, func() error { return c.dir.installProxy(o.proxy, o.repository, c.nodes[0], c.daemons) }},
		{"nodes", c.waitNodes},
		{"DNS", c.waitDNS},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		fmt.Printf("%5.1f s  %s\n", time.Since(c.began).Seconds(), step.what)
	}
	return nil
}

// writeFiles makes the directory with everything that the daemons read.
func (c *cluster) writeFiles() (err error) {
	d := c.dir
	if err := d.claim(); err != nil {
		return err
	}
	for _, sub := range []string{"bin", "pki", "log", "etcd"} {
		if err := os.MkdirAll(d.file(sub), 0o700); err != nil {
			return err
		}
	}
	if err := shareMounts(string(d)); err != nil {
		return err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if c.cgroups, err = findCgroups(string(mounts)); err != nil {
		return err
	}
	if err := c.linkBinaries(); err != nil {
		return err
	}
	if err := d.saveSysctls(); err != nil {
		return err
	}
	if err := allowWatchers(); err != nil {
		return err
	}
	// Nothing outside is asked for names.
	if err := os.WriteFile(d.file("resolv.conf"), []byte("# none\n"), 0o644); err != nil {
		return err
	}
	if err := d.writePKI(c.nodes); err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := d.writeNode(n); err != nil {
			return err
		}
	}
	return c.writeEnv()
}

// linkBinaries puts links to all binaries into D/bin.
func (c *cluster) linkBinaries() error {
	for _, script := range []string{"build.sh", "build-cluster.sh"} {
		at, err := output("", filepath.Join(c.repository, "e2e", "peers", script), "--dir")
		if err != nil {
			return err
		}
		files, err := filepath.Glob(filepath.Join(strings.TrimSpace(at), "*"))
		if err != nil {
			return err
		}
		for _, f := range files {
			if info, err := os.Stat(f); err != nil || info.Mode()&0o111 == 0 || info.IsDir() {
				continue
			}
			if err := os.Symlink(f, c.dir.file("bin", filepath.Base(f))); err != nil {
				return err
			}
		}
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl", "kubelet", "containerd", "coredns"} {
		if _, err := os.Stat(c.dir.file("bin", name)); err != nil {
			return fmt.Errorf("%w (run 'make cluster', or e2e/peers/build.sh and build-cluster.sh, first)", err)
		}
	}
	return nil
}

// writeEnv makes what others use the cluster by: D/env for shells, and D/kubectl.
func (c *cluster) writeEnv() error {
	env := fmt.Sprintf("export KUBECONFIG=%s\nBIN=%s\nNODES=%q\nCLIENT=%s\n", c.dir.adminConfig(), c.dir.file("bin"),
		strings.Join(names(c.nodes), " "), c.dir.clientNetns())
	if err := os.WriteFile(c.dir.file("env"), []byte(env), 0o644); err != nil {
		return err
	}
	script := fmt.Sprintf("#!/bin/sh\nexec nsenter --net=/run/netns/%s %s --kubeconfig=%s \"$@\"\n", c.dir.clientNetns(),
		c.dir.file("bin", "kubectl"), c.dir.adminConfig())
	return os.WriteFile(c.dir.file("kubectl"), []byte(script), 0o755)
}

// names are the nodes'.
func names(nodes []node) (out []string) {
	for _, n := range nodes {
		out = append(out, n.Name)
	}
	return out
}

// startDaemons runs what waits for nothing.
func (c *cluster) startDaemons() error {
	for _, n := range c.nodes {
		daemons, err := c.dir.startNode(c.cgroups, n)
		if err != nil {
			return err
		}
		c.daemons = append(c.daemons, daemons...)
	}
	daemons, err := c.dir.startControl(c.cgroups, c.nodes[0], c.dir.etcdArgs(), c.dir.apiserverArgs(c.nodes[0]))
	c.daemons = append(c.daemons, daemons...)
	return err
}

// loadImages makes the images and brings them to all nodes.
func (c *cluster) loadImages() error {
	pod := c.dir.file("pod-binary")
	// Without cgo: it runs on nothing but a kernel.
	if err := run("env", "CGO_ENABLED=0", "go", "build", "-C", c.repository, "-trimpath", "-ldflags=-s -w", "-o", pod,
		"./e2e/cluster/pod"); err != nil {
		return err
	}
	archives, err := c.dir.writeImages(pod)
	if err != nil {
		return err
	}
	ours, err := filepath.Glob(filepath.Join(c.repository, "bin", "image", "nftproxy-*.oci.tar"))
	if err != nil || len(ours) == 0 {
		return errors.New("no bin/image/nftproxy-*.oci.tar: run 'make image' first")
	}
	archives = append(archives, ours...)
	return c.each(func(n node) error {
		err := poll(30*time.Second, "containerd of "+n.Name, c.daemons, func() error {
			return run(c.dir.file("bin", "ctr"), "--address="+c.dir.socket(n), "--namespace=k8s.io", "version")
		})
		if err != nil {
			return err
		}
		return c.dir.load(n, archives...)
	})
}

// each does something for all nodes at once.
func (c *cluster) each(do func(node) error) error { return forAll(c.nodes, do) }

// forAll does something for all nodes at once.
func forAll(nodes []node, do func(node) error) error {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() { errs[i] = do(n) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// waitAPI waits until the API server serves.
func (c *cluster) waitAPI() error {
	return poll(2*time.Minute, "API server", c.daemons, func() error {
		_, err := c.dir.kubectl("", "get", "--raw=/readyz")
		return err
	})
}

// writeObjects makes the Node objects, DNS and what the proxies read.
func (c *cluster) writeObjects() error {
	if err := c.dir.apply(nodeObjects(c.nodes)); err != nil {
		return err
	}
	text, err := render(addonsText, c.nodes[0])
	if err != nil {
		return err
	}
	return c.dir.apply(text)
}

// startControllers runs what needs the API server and its roles from the start.
func (c *cluster) startControllers() error {
	daemons, err := c.dir.startControl(c.cgroups, c.nodes[0], c.dir.controllersArgs(), c.dir.schedulerArgs())
	c.daemons = append(c.daemons, daemons...)
	if err != nil {
		return err
	}
	for _, n := range c.nodes {
		p, err := c.dir.startKubelet(c.cgroups, n)
		if err != nil {
			return err
		}
		c.daemons = append(c.daemons, p)
	}
	return nil
}

// waitNodes waits until all nodes are Ready.
func (c *cluster) waitNodes() error {
	return poll(2*time.Minute, "nodes", c.daemons, func() error {
		_, err := c.dir.kubectl("", "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=10s")
		return err
	})
}

// waitDNS waits for CoreDNS and asks it, unless there is no proxy to reach it by.
func (c *cluster) waitDNS() error {
	if c.proxy == "none" {
		return nil
	}
	if err := c.dir.rollout("deployment/coredns", c.daemons); err != nil {
		return err
	}
	return c.dir.checkDNS()
}
