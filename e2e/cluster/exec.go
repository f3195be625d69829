// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// run runs a program to its end; the error has what it wrote.
func run(argv ...string) error { return runInput("", argv...) }

// runInput is run with a standard input.
func runInput(stdin string, argv ...string) error {
	_, err := output(stdin, argv...)
	return err
}

// output runs a program to its end and returns what it wrote to standard output.
func output(stdin string, argv ...string) (string, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s%s", strings.Join(argv, " "), err, out.String(), errOut.String())
	}
	return out.String(), nil
}

// daemon is a process of the cluster that outlives this one.
type daemon struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
}

// spawn starts a daemon in a network namespace and in a cgroup, by which a later call finds it and everything that it
// starts, under its node's host name, which pods in the host's network share. Its outputs go to the file NAME.log. nsenter and the shell are replaced by the program, so the process is it.
//
// The mounts stay the machine's: ip netns exec would mount another /sys, without the cgroups that a kubelet needs.
func (d dir) spawn(c cgroups, group, netns, name string, argv ...string) (*daemon, error) {
	join := "echo " + strings.TrimPrefix(netns, d.name()+"-") + " >/proc/sys/kernel/hostname && "
	for _, p := range c.procs(group) {
		join += "echo $$ >" + p + " && "
	}
	log := d.file("log", name+".log")
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%s: log: %w", name, err)
	}
	defer out.Close()
	cmd := exec.Command("sh", append([]string{"-c", join + `exec nsenter --net="$0" "$@"`, "/run/netns/" + netns}, argv...)...)
	cmd.Dir = string(d)
	cmd.Env = append(os.Environ(), "PATH="+d.file("bin")+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = out, out
	// A signal to our terminal is not for it, and its host name is its own.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWUTS}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p := &daemon{name, log, cmd, make(chan struct{})}
	go func() {
		cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// alive is nil while the daemon runs, and later an error with the end of its log.
func (p *daemon) alive() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended: %s; the end of its log:\n%s", p.name, p.cmd.ProcessState, tail(p.log, 30))
	default:
		return nil
	}
}

// tail is the last lines of a file.
func tail(file string, lines int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.SplitAfter(strings.TrimSuffix(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}

// poll calls a check until it succeeds, a daemon ends, or the time is up.
func poll(within time.Duration, what string, daemons []*daemon, check func() error) error {
	for deadline := time.Now().Add(within); ; time.Sleep(100 * time.Millisecond) {
		err := check()
		if err == nil {
			return nil
		}
		var ended []error
		for _, p := range daemons {
			ended = append(ended, p.alive())
		}
		if e := errors.Join(ended...); e != nil {
			return fmt.Errorf("%s: %w", what, e)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %s: %w", what, within, err)
		}
	}
}
