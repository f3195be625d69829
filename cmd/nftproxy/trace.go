// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier/explain"
	"github.com/nftproxy/nftproxy/proxier/inspect"
	"github.com/nftproxy/nftproxy/proxier/trace"
)

const aboutTrace = `trace watches real packets on this node and prints the path of each through the
rules of all tables: its Service and endpoint, whether it is masqueraded and why, and
which rule refuses or drops it, of nftproxy or of others. By default it shows the
first packet of each connection. It ends after --count of them, or after --timeout.

Packets are selected as the client sends them, before any translation: by Service, by
protocol and address, by client, or by several of these. A table of its own selects
the packets that the kernel traces; it disappears with the command, also when the
command is killed, and the rules of others stay as they are. It needs CAP_NET_ADMIN.

It exits with 0 if all packets were sent or received, with 1 if one was refused or
dropped, and with 2 if none was seen or what happened is not known.`

const traceExamples = `  nftproxy trace --service default/web
  nftproxy trace tcp 10.96.0.10:443 --from 10.244.1.5
  nftproxy trace udp '[fd00:10:96::a]:53' --iif eth0 --count 1 -o json`

// watching is one call of `nftproxy trace`.
type watching struct {
	filterFlags
	output  string
	count   int
	timeout time.Duration
}

// newTraceCommand returns `nftproxy trace`.
func newTraceCommand(out io.Writer) *cobra.Command {
	var w watching
	cmd := inquiry(&cobra.Command{
		Use:   "trace [PROTOCOL [ADDRESS[:PORT]]]",
		Short: "Watch the paths of real packets on this node", Long: aboutTrace, Example: traceExamples, Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			stamp := newStamp(cmd.Flags())
			write, err := traceForm(out, w.output, stamp)
			if err == nil {
				err = w.take(args)
			}
			if err == nil {
				err = w.check()
			}
			if err != nil {
				return err
			}
			if w.output != "json" {
				if _, err := fmt.Fprintln(out, stamp); err != nil {
					return err
				}
			}
			return w.run(cmd.Context(), cmd.ErrOrStderr(), write)
		},
	})
	w.addFlags(cmd.Flags())
	cmd.Flags().StringVarP(&w.output, "output", "o", "text", "text, wide or json: one line for each packet.")
	cmd.Flags().IntVar(&w.count, "count", 10, "How many packets to show; 0 is no limit.")
	cmd.Flags().DurationVar(&w.timeout, "timeout", 30*time.Second, "How long to watch.")
	completeFlags(cmd, []string{"text", "wide", "json"})
	return cmd
}

// traceForm returns what writes a path in the form that -o names.
func traceForm(out io.Writer, name string, stamp inspect.Stamp) (func(*trace.Path) error, error) {
	switch name {
	case "text", "wide":
		return func(p *trace.Path) error { return trace.Text(out, p, name == "wide") }, nil
	case "json":
		return func(p *trace.Path) error {
			p.Node, p.Version = stamp.Node, stamp.Version
			return trace.JSON(out, p)
		}, nil
	}
	return nil, fmt.Errorf("-o %s: must be text, wide or json", name)
}

// maxTraceRate is what the kernel's socket buffer takes of some 15 messages per packet, and the reader keeps pace with.
const maxTraceRate = 10000

// check refuses what the flags must not be.
func (w *watching) check() error {
	switch {
	case w.timeout <= 0:
		return fmt.Errorf("--timeout %s: must be above 0", w.timeout)
	case w.count < 0:
		return fmt.Errorf("--count %d: must not be negative", w.count)
	case w.rate == 0 || w.rate > maxTraceRate:
		return fmt.Errorf("--rate %d: must be from 1 to %d", w.rate, maxTraceRate)
	}
	return nil
}

// traceQuiet is the time without a message after which a packet has passed: the kernel takes it through all hooks without a
// pause, unless a rule hands it to a program.
const traceQuiet = 200 * time.Millisecond

// traceGrace is how much longer than --timeout the rules have an effect if nothing removes them.
const traceGrace = 5 * time.Second

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
	filters, err := w.filters(facts.table)
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
	if err := s.report(log, tracer, time.Since(began)); err != nil {
		return err
	}
	switch {
	case s.shown == 0:
		return errors.New("no packet that matches was seen")
	case s.unknown:
		return &exitError{2, errAnswerNo}
	case s.failed:
		return errAnswerNo
	}
	return nil
}

// session is one run of the command.
type session struct {
	*watching
	facts           *traceFacts
	collector       trace.Collector
	write           func(*trace.Path) error
	shown, overruns int
	failed, unknown bool  // a packet was refused or dropped; it is unknown what happened to one
	err             error // of write
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

// full returns whether there is nothing more to show.
func (s *session) full() bool { return s.err != nil || s.count > 0 && s.shown >= s.count }

func (s *session) show(done ...*trace.Seen) {
	for _, p := range done {
		if p == nil || s.full() {
			continue
		}
		s.facts.refresh()
		s.shown++
		path := trace.Describe(p, s.facts.facts())
		switch path.Outcome {
		case explain.Refused, explain.Dropped, explain.Lost:
			s.failed = true
		case explain.Queued, explain.Bridged:
			s.unknown = true
		}
		s.err = s.write(path)
	}
}

// report prints what was seen, and what was not.
func (s *session) report(log io.Writer, tracer *kernel.Trace, took time.Duration) error {
	what := "connections"
	if s.all {
		what = "packets"
	}
	matched, traced, err := tracer.Counts()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(log, "%s shown: %d in %s\n", what, s.shown, took.Round(time.Millisecond))
	if matched > traced && err == nil {
		_, err = fmt.Fprintf(log, "packets that matched and were not traced, above %d per second (--rate): %d\n", s.rate, matched-traced)
	}
	if s.overruns > 0 && err == nil {
		_, err = fmt.Fprintf(log, "messages of the kernel were lost, use a lower --rate; overruns: %d\n", s.overruns)
	}
	return err
}

// traceFacts reads what a trace has to know of the ruleset when it is needed, once for each generation of it.
type traceFacts struct {
	kernel     *kernel.Conn
	node       *facts
	generation uint32
	hooks      map[nft.TraceTable]map[string]nft.Hook
	rules      map[chainOf][]nft.TracedRule
	tables     map[nft.Family]*explain.Describer
}

// chainOf is a chain of any table.
type chainOf struct {
	table nft.TraceTable
	chain string
}

func newTraceFacts(conn *kernel.Conn) (*traceFacts, error) {
	node, err := readFacts()
	if err != nil {
		return nil, err
	}
	t := &traceFacts{kernel: conn, node: node}
	t.forget()
	return t, nil
}

func (t *traceFacts) forget() {
	t.hooks, t.rules = map[nft.TraceTable]map[string]nft.Hook{}, map[chainOf][]nft.TracedRule{}
	t.tables = map[nft.Family]*explain.Describer{}
}

// refresh forgets what was read if the ruleset changed since.
func (t *traceFacts) refresh() {
	if now, err := t.kernel.Generation(); err != nil || now != t.generation {
		t.forget()
		t.generation = now
	}
}

// table reads our table of a family; nil if that fails.
func (t *traceFacts) table(f nft.Family) *explain.Describer {
	d, ok := t.tables[f]
	if !ok {
		if s, err := t.kernel.Snapshot(f); err == nil { // without it there are no texts
			d = explain.NewDescriber(inspect.Read(s))
		}
		t.tables[f] = d
	}
	return d
}

func (t *traceFacts) hook(table nft.TraceTable, chain string) (nft.Hook, bool) {
	hooks, ok := t.hooks[table]
	if !ok {
		hooks, _ = t.kernel.TracedChains(table)
		t.hooks[table] = hooks
	}
	h, ok := hooks[chain]
	return h, ok
}

func (t *traceFacts) rule(table nft.TraceTable, chain string, handle uint64) (nft.TracedRule, int) {
	at := chainOf{table, chain}
	rules, ok := t.rules[at]
	if !ok {
		rules, _ = t.kernel.TracedRules(table, chain)
		t.rules[at] = rules
	}
	for i, r := range rules {
		if r.Handle == handle {
			return r, i + 1
		}
	}
	return nft.TracedRule{}, 0
}

// facts are those that package trace needs. An interface that is gone is named by its number.
func (t *traceFacts) facts() trace.Facts {
	return trace.Facts{
		Hook: t.hook, Rule: t.rule, Describer: t.table, BridgeNetfilter: bridgeNetfilter,
		Interface: func(index uint32) string {
			if i, err := net.InterfaceByIndex(int(index)); err == nil {
				return i.Name
			}
			return fmt.Sprintf("interface %d", index)
		},
		Node: func(f nft.Family) explain.Node {
			return explain.Node{Local: t.node.isLocal, Route: t.node.route, NextHop: t.node.nextHop, Client: clientOf(t.kernel, f)}
		},
	}
}
