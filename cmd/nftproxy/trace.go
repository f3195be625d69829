// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/trace"
)

const aboutTrace = `trace watches real packets on this node and prints the way that each takes through the
rules of all tables: which Service and endpoint, what is masqueraded and why, and
which rule refuses or drops it, nftproxy's or somebody else's. By default it shows
the first packet of each connection. It ends by itself after --count of them, or
after --timeout.

Packets are chosen as the client sends them, before any translation: by Service, by
protocol and address, by client, or by several of these. The kernel traces what a
table of the command's own marks; that table goes with the command, also when it is
killed, and the rules of others stay as they are. It needs CAP_NET_ADMIN.`

// watching is what trace is asked.
type watching struct {
	filterFlags
	output  string
	count   int
	timeout time.Duration
}

// newTraceCommand returns `nftproxy trace`.
func newTraceCommand(out io.Writer) *cobra.Command {
	var w watching
	cmd := &cobra.Command{
		Use:   "trace [PROTOCOL [ADDRESS[:PORT]]]",
		Short: "Watch the ways of real packets on this node", Long: aboutTrace, Args: cobra.MaximumNArgs(2),
		Example: "  nftproxy trace --service default/web\n  nftproxy trace tcp 10.96.0.10:443 --from 10.244.1.5\n  nftproxy trace udp '[fd00:10:96::a]:53' --iif eth0 --count 1 -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			write, err := traceForm(w.output)
			if err == nil {
				err = w.take(args)
			}
			if err == nil && (w.timeout <= 0 || w.count < 0 || w.rate == 0 || w.rate > maxTraceRate) {
				err = fmt.Errorf("--timeout must be above 0, --count not below it, --rate from 1 to %d", maxTraceRate)
			}
			if err != nil {
				return err
			}
			cmd.SilenceUsage = true
			return permission(w.run(cmd.Context(), cmd.ErrOrStderr(), func(p *trace.Path) error { return write(out, p) }))
		},
	}
	w.addFlags(cmd.Flags())
	cmd.Flags().StringVarP(&w.output, "output", "o", "text", "text, wide or json: one line for each packet.")
	cmd.Flags().IntVar(&w.count, "count", 10, "How many packets to show; 0 is no limit.")
	cmd.Flags().DurationVar(&w.timeout, "timeout", 30*time.Second, "How long to watch.")
	return cmd
}

// traceForm returns what writes a path in the form that -o names.
func traceForm(name string) (func(io.Writer, *trace.Path) error, error) {
	switch name {
	case "text", "wide":
		return func(w io.Writer, p *trace.Path) error { return trace.Text(w, p, name == "wide") }, nil
	case "json":
		return trace.JSON, nil
	}
	return nil, fmt.Errorf("-o %s: must be text, wide or json", name)
}

// traceQuiet is after how long without a message a packet is taken to be through: the kernel takes it through all hooks
// without a pause but for a program that it is handed to.
const traceQuiet = 200 * time.Millisecond

// traceGrace is how much longer than asked for the rules have an effect where nobody removes them.
const traceGrace = 5 * time.Second

// maxTraceRate is what the kernel's messages of some 15 to a packet can keep pace with, and the reader with these.
const maxTraceRate = 10000

// run watches and writes, until the count is reached, time is over or the process is asked to end.
func (w *watching) run(ctx context.Context, log io.Writer, write func(*trace.Path) error) (err error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	conn, err := kernel.Open(0)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	facts, err := newTraceFacts(conn)
	if err != nil {
		return err
	}
	filters, err := w.filters(facts)
	if err != nil {
		return err
	}
	for i := range filters {
		filters[i].Lifetime = w.timeout + traceGrace
	}
	tracer, err := kernel.OpenTrace(0, filters)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tracer.Close()) }()
	s := &session{watching: w, facts: facts, write: write}
	s.collector.Quiet, s.collector.Hook = traceQuiet, facts.hook
	began := time.Now()
	if err := s.watch(ctx, tracer); err != nil {
		return err
	}
	return s.report(log, tracer, time.Since(began))
}

// session is one run of the command.
type session struct {
	*watching
	facts     *traceFacts
	collector trace.Collector
	write     func(*trace.Path) error
	shown     int
	overruns  int
	err       error // of write
}

// watch shows packets until there are enough, ctx ends or time is over; then it waits for those on their way.
func (s *session) watch(ctx context.Context, tracer *kernel.Trace) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := s.follow(ctx, cancel, tracer, false)
	if err == nil && !s.full() && s.collector.Unfinished() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceQuiet)
		defer cancel()
		err = s.follow(last, cancel, tracer, true)
	}
	s.show(s.collector.Complete(time.Now(), true)...)
	return errors.Join(err, s.err)
}

// follow takes messages, without those of new packets if nothing new is wanted.
func (s *session) follow(ctx context.Context, enough func(), tracer *kernel.Trace, known bool) error {
	show := func(done ...*trace.Seen) {
		if s.show(done...); s.full() {
			enough()
		}
	}
	return tracer.Run(ctx, traceQuiet/4, func(e *nft.TraceEvent) {
		if !known || !e.Starts() {
			show(s.collector.Add(e, time.Now()))
		}
	}, func() {
		s.overruns++
		s.collector.Lost()
	}, func() {
		show(s.collector.Complete(time.Now(), false)...)
	})
}

// full tells when there is nothing more to show.
func (s *session) full() bool { return s.err != nil || s.count > 0 && s.shown >= s.count }

func (s *session) show(done ...*trace.Seen) {
	for _, p := range done {
		if p == nil || s.full() {
			continue
		}
		s.facts.refresh()
		s.shown++
		s.err = s.write(trace.Tell(p, s.facts.facts()))
	}
}

// report says what was seen, and what was not.
func (s *session) report(log io.Writer, tracer *kernel.Trace, took time.Duration) error {
	what := "connections"
	if s.all {
		what = "packets"
	}
	matched, traced, err := tracer.Counts()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(log, "%d %s shown in %s\n", s.shown, what, took.Round(time.Millisecond))
	if matched > traced && err == nil {
		_, err = fmt.Fprintf(log, "%d packets more matched, and were not traced: above %d per second (--rate)\n", matched-traced, s.rate)
	}
	if s.overruns > 0 && err == nil {
		_, err = fmt.Fprintf(log, "messages of the kernel were lost %d times: a lower --rate helps\n", s.overruns)
	}
	return err
}
