// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// launcher starts processes on one thread that lives as long as they may. Pdeathsig needs that: the kernel sends it when
// the thread that forked ends, not when the process does, and Go ends threads as it likes.
type launcher struct {
	jobs chan func()
	quit chan struct{}
	once sync.Once
}

func newLauncher() *launcher {
	l := &launcher{jobs: make(chan func()), quit: make(chan struct{})}
	go func() {
		runtime.LockOSThread()
		for {
			select {
			case job := <-l.jobs:
				job()
			case <-l.quit:
				return
			}
		}
	}()
	return l
}

// close ends the thread, and with it all processes started on it.
func (l *launcher) close() { l.once.Do(func() { close(l.quit) }) }

// start starts the command in the namespace.
func (l *launcher) start(ns *Namespace, cmd *exec.Cmd) error {
	done := make(chan error)
	select {
	case l.jobs <- func() { done <- ns.Do(cmd.Start) }:
		return <-done
	case <-l.quit:
		return errors.New("the lab is closed")
	}
}

// Process is a program running in a namespace. When this process ends, however it ends, so does that one.
type Process struct {
	Name string
	Log  string // file with what it wrote to both outputs

	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how, once done
}

// spawn starts a program in a namespace with its outputs in the log file, appended to what is there.
func (l *launcher) spawn(ns *Namespace, name, log string, env []string, argv ...string) (*Process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%s: log: %w", name, err)
	}
	defer file.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := l.start(ns, cmd); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p := &Process{Name: name, Log: log, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID is the process's ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Signal sends a signal.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s to %s: %w", s, p.Name, err)
	}
	return nil
}

// stopTimeout is how long Stop waits after SIGTERM. kubelet's default grace period is 30 s; nothing here needs a third.
const stopTimeout = HangLimit

// Stop sends SIGTERM and waits. The error says that the process had to be killed, or ended with a non-zero status; to end
// by the signal itself is no error.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		return errors.Join(fmt.Errorf("%s: still running %s after SIGTERM", p.Name, stopTimeout), p.Kill())
	}
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() && s.Signal() == syscall.SIGTERM {
			return nil
		}
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w", p.Name, p.err)
	}
	return nil
}

// Kill sends SIGKILL and waits.
func (p *Process) Kill() error {
	err := p.Signal(syscall.SIGKILL)
	<-p.done
	return err
}

// alive is nil while the process runs, and later an error with how it ended and the end of its log.
func (p *Process) alive() error {
	select {
	case <-p.done:
		outcome := p.err
		if outcome == nil {
			outcome = errors.New("exit status 0")
		}
		return fmt.Errorf("%s ended: %w; the end of its log:\n%s", p.Name, outcome, p.Tail(tailLines))
	default:
		return nil
	}
}

// tailLines is how much of a log goes into an error message.
const tailLines = 30

// Tail returns the last lines of the log.
func (p *Process) Tail(lines int) string { return tail(p.Log, lines) }

func tail(file string, lines int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.SplitAfter(strings.TrimSuffix(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}

// logTails shows the end of every log of the Net.
func (n *Net) logTails(t testing.TB) {
	logs, _ := filepath.Glob(filepath.Join(n.dir, "*.log"))
	for _, file := range logs {
		t.Logf("the end of %s:\n%s", filepath.Base(file), tail(file, tailLines))
	}
}

// Run runs a program in the host's namespace to its end and returns what it wrote to standard output. It is for
// assertions and tools; the error has what it wrote to standard error.
func (h *Host) Run(argv ...string) (string, error) { return h.Net.launcher.run(h, nil, argv...) }

// RunInput is Run with a standard input.
func (h *Host) RunInput(stdin io.Reader, argv ...string) (string, error) {
	return h.Net.launcher.run(h, stdin, argv...)
}

func (l *launcher) run(h *Host, stdin io.Reader, argv ...string) (string, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errOut
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := l.start(h.Namespace, cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return out.String(), fmt.Errorf("%s: %s: %w: %s", h.Name, strings.Join(argv, " "), err, errOut.String())
	}
	return out.String(), nil
}

// NFT runs the machine's nft on a host, for assertions: lab.NFT(node.Host, "list", "ruleset").
func NFT(h *Host, args ...string) (string, error) { return h.Run(append([]string{"nft"}, args...)...) }

// LoadNFT feeds a ruleset to nft -f on a host.
func LoadNFT(h *Host, ruleset string) error {
	_, err := h.RunInput(strings.NewReader(ruleset), "nft", "-f", "-")
	return err
}
