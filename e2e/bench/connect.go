// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

// slowAfter is what no new connection may wait longer. An established one takes 0.1 ms here.
const slowAfter = 20 * time.Millisecond

// connect makes one TCP connection on this thread and resets it, so that it leaves nothing behind. How long it takes is up to
// the kernel alone: neither this process's scheduler nor the program that accepts has a part in a handshake. With hello it then
// waits for what the backend says, so that all before it are accepted too: a full queue drops handshakes. That is not timed.
func connect(to netip.AddrPort, limit time.Duration, hello bool) (time.Duration, error) {
	domain, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(to.Port()), Addr: [4]byte(to.Addr().AsSlice())})
	if to.Addr().Is6() {
		domain, sa = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return 0, fmt.Errorf("SO_LINGER: %w", err)
	}
	start := time.Now()
	if err = unix.Connect(fd, sa); err == unix.EINPROGRESS {
		err = await(fd, unix.POLLOUT, start.Add(limit))
	}
	took := time.Since(start)
	if err != nil || !hello {
		return took, err
	}
	if err := await(fd, unix.POLLIN, start.Add(limit)); err != nil {
		return took, err
	}
	_, err = unix.Read(fd, make([]byte, 1))
	return took, err
}

// await waits for an event of a socket on this thread: a blocking call with a timeout would not survive the signals by which Go
// interrupts its threads.
func await(fd int, event int16, deadline time.Time) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: event}}, int(max(0, time.Until(deadline).Milliseconds())))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("poll: %w", err)
		case n == 0:
			return unix.ETIMEDOUT
		}
		code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		return err
	}
}

// onThread runs f on a thread of its own in the host's namespace, which goes before others: what is measured is how long the
// kernel takes, not how long this process waits for a processor while a proxy is busy.
func onThread(h *lab.Host, f func()) error {
	const nice = -10
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked, so that the thread ends with the goroutine
		unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), nice)
		failed <- h.Do(func() error { f(); return nil })
	}()
	return <-failed
}

// attempt is one connection that was bad: from when to when.
type attempt struct{ start, end time.Time }

func (a attempt) overlaps(b attempt) bool { return a.start.Before(b.end) && b.start.Before(a.end) }

// tally counts connections of one kind.
type tally struct {
	total, failed int
	slowest       time.Duration
	slow          []attempt // longer than slowAfter
	first         error     // what became of the first that failed
}

func (t *tally) add(start time.Time, took time.Duration, err error) {
	t.total++
	if err != nil {
		t.failed++
		if t.first == nil {
			t.first = err
		}
		return
	}
	t.slowest = max(t.slowest, took)
	if took > slowAfter {
		t.slow = append(t.slow, attempt{start, start.Add(took)})
	}
}

// alone are the slow ones during which no connection of the control was slow: those that the machine does not account for.
func (t *tally) alone(control *tally) (n int) {
	for _, a := range t.slow {
		excused := false
		for _, b := range control.slow {
			excused = excused || a.overlaps(b)
		}
		if !excused {
			n++
		}
	}
	return n
}

// waits returns how long the calling thread has been ready to run without a processor. On a busy machine that is most of what a
// connection takes, and no packet had to wait for it.
type waits struct{ fd int }

// openWaits is for the calling thread, which must not change.
func openWaits() waits {
	fd, err := unix.Open("/proc/thread-self/schedstat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		fd = -1 // a kernel without CONFIG_SCHED_INFO: nothing is known to be waiting
	}
	return waits{fd}
}

func (w waits) close() {
	if w.fd >= 0 {
		unix.Close(w.fd)
	}
}

// sum is the second of the three numbers, in nanoseconds.
func (w waits) sum() time.Duration {
	var buf [96]byte
	if w.fd < 0 {
		return 0
	}
	n, err := unix.Pread(w.fd, buf[:], 0)
	if err != nil {
		return 0
	}
	return runDelay(string(buf[:n]))
}

func runDelay(schedstat string) time.Duration {
	f := strings.Fields(schedstat)
	if len(f) < 2 {
		return 0
	}
	ns, _ := strconv.ParseInt(f[1], 10, 64)
	return time.Duration(ns)
}

// watch connects to Services all the time, one after another, and beside that to an endpoint directly, until stop is called. An
// address counts from its first answer on, as a Service that no proxy has heard of yet cannot answer. What a connection took is without
// the time that the connecting thread waited for a processor.
type watch struct {
	services, direct tally
	cancel           context.CancelFunc
	running          sync.WaitGroup
}

func startWatch(from *lab.Host, services []netip.AddrPort, direct netip.AddrPort, pause time.Duration) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{cancel: cancel}
	each := func(t *tally, to []netip.AddrPort) {
		w.running.Go(func() {
			served := make([]bool, len(to))
			err := onThread(from, func() {
				waits := openWaits()
				defer waits.close()
				for k := 0; ctx.Err() == nil; k = (k + 1) % len(to) {
					start, waited := time.Now(), waits.sum()
					took, err := connect(to[k], tooLong, false)
					took = max(0, took-(waits.sum()-waited))
					served[k] = served[k] || err == nil
					if served[k] {
						t.add(start, took, err)
					}
					time.Sleep(pause)
				}
			})
			if err != nil {
				t.add(time.Now(), 0, err)
			}
		})
	}
	each(&w.services, services)
	each(&w.direct, []netip.AddrPort{direct})
	return w
}

// stop ends it and writes down what was seen in a phase.
func (w *watch) stop(into samples, phase string) {
	w.cancel()
	w.running.Wait()
	s, d := &w.services, &w.direct
	for name, v := range map[string]float64{
		"total": float64(s.total), "failed": float64(s.failed), "slow": float64(len(s.slow)), "alone": float64(s.alone(d)),
		"slowest": s.slowest.Seconds(), "direct_total": float64(d.total), "direct_failed": float64(d.failed),
		"direct_slow": float64(len(d.slow)), "direct_slowest": d.slowest.Seconds(),
	} {
		into.add(connName(phase, name), v)
	}
	if s.failed > 0 {
		progress("%s: %d of %d connections failed, the first: %v", phase, s.failed, s.total, s.first)
	}
}

// connName is the name of the samples of a count of connections.
func connName(phase, what string) string { return "conn/" + phase + "/" + what }
