// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package proxier

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/nftproxy/nftproxy/nft"
)

// logged collects what is logged.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

// lines returns those that hold a text.
func (l *logged) lines(text string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, text) {
			out = append(out, line)
		}
	}
	return out
}

func (l *logged) logger(verbosity int) klog.Logger {
	return textlogger.NewLogger(textlogger.NewConfig(textlogger.Verbosity(verbosity), textlogger.Output(l)))
}

// At -v=2 a sync is one line with its counts and time; without, there is none. What the kernel refuses is told by name.
func TestLog(t *testing.T) {
	const changes = 5
	for _, verbosity := range []int{0, 2} {
		t.Run(fmt.Sprint("v=", verbosity), func(t *testing.T) {
			r, log := newRig(t), &logged{}
			r.stop()
			r.logger = log.logger(verbosity)
			r.start()
			r.set(service(1, 2)...)
			r.sync()
			r.ready()
			for i := range changes {
				r.set(service(i+2, 2)...)
				r.eventually("a Service more", func() bool { return r.count(nft.NodePorts) == i+2 })
			}
			bad := "default/svc-9"
			r.kernel.refuse.Store(&bad)
			r.set(service(9, 2)...)
			r.eventually("the refusal", func() bool { return len(log.lines("Set a Service aside")) > 0 })
			r.stop()
			// The error may have lines of its own, one for each family.
			if line := log.lines("Set a Service aside")[0]; !strings.HasPrefix(line, "E") || len(log.lines(`service="default/svc-9"`)) == 0 {
				t.Errorf("of the refusal: %s", log.buf.String())
			}
			lines := log.lines("Synced")
			// A Service and its slice may come in two syncs.
			if n := len(lines); verbosity == 0 && n != 0 || verbosity == 2 && (n < changes || n > 2*changes+2) {
				t.Errorf("%d lines of %d changes: %q", n, changes, lines)
			}
			synced := regexp.MustCompile(`^I.*"Synced" services=\d+ elements=\d+ took="[^"]+"\n$`)
			for _, line := range lines {
				if !synced.MatchString(line) {
					t.Errorf("line %q", line)
				}
			}
		})
	}
}
