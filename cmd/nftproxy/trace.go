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
	"slices"
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

// tracer is one call of `nftproxy trace`.
type tracer struct {
	filterFlags
	output  string
	count   int
	timeout time.Duration

	write           func(*trace.Path) error
	facts           *traceFacts
	collector       trace.Collector
	shown, overruns int
	failed, unknown bool  // a packet was refused or dropped; it is unknown what happened to one
	err             error // of write
}

// newTraceCommand returns `nftproxy trace`.
func newTraceCommand(out io.Writer) *cobra.Command {
	var t tracer
	cmd := inquiry(&cobra.Command{
		Use:   "trace [PROTOCOL [ADDRESS[:PORT]]]",
		Short: "Watch the paths of real packets on this node", Long: aboutTrace, Example: traceExamples, Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := t.take(args); err != nil {
				return err
			}
			stamp := newStamp(cmd.Flags())
			switch {
			case t.timeout <= 0:
				return fmt.Errorf("--timeout %s: must be above 0", t.timeout)
			case t.count < 0:
				return fmt.Errorf("--count %d: must not be negative", t.count)
			case t.rate == 0 || t.rate > maxTraceRate:
				return fmt.Errorf("--rate %d: must be from 1 to %d", t.rate, maxTraceRate)
			case t.output == "json":
				t.write = func(p *trace.Path) error {
					p.Node, p.Version = stamp.Node, stamp.Version
					return trace.JSON(out, p)
				}
			case t.output == "text" || t.output == "wide":
				t.write = func(p *trace.Path) error {
					if t.shown == 1 {
						_, _ = fmt.Fprintln(out, stamp) // Text returns the error
					}
					return trace.Text(out, p, t.output == "wide")
				}
			default:
				return fmt.Errorf("-o %s: must be text, wide or json", t.output)
			}
			return t.run(cmd.Context(), cmd.ErrOrStderr())
		},
	})
	t.addFlags(cmd.Flags())
	cmd.Flags().StringVarP(&t.output, "output", "o", "text", "text, wide or json: one line for each packet.")
	cmd.Flags().IntVar(&t.count, "count", 10, "How many packets to show; 0 is no limit.")
	cmd.Flags().DurationVar(&t.timeout, "timeout", 30*time.Second, "How long to watch.")
	completeFlags(cmd, []string{"text", "wide", "json"})
	return cmd
}

// maxTraceRate is what the kernel's socket buffer takes of some 15 messages per packet, and the reader keeps pace with.
const maxTraceRate = 10000

// traceQuiet is the time without a message after which a packet has passed: the kernel takes it through all hooks without a
// pause, unless a rule hands it to a program.
const traceQuiet = 200 * time.Millisecond

// traceGrace is how much longer than --timeout the rules have an effect if nothing removes them.
const traceGrace = 5 * time.Second

// run watches and writes, until the count is reached, time is over or the process is asked to end.
func (t *tracer) run(ctx context.Context, log io.Writer) (err error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	conn, err := kernel.Open(0)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if t.facts, err = newTraceFacts(conn); err != nil {
		return err
	}
	filters, err := t.filters(t.facts.table)
	if err != nil {
		return err
	}
	for i := range filters {
		filters[i].Lifetime = t.timeout + traceGrace
	}
	source, err := kernel.OpenTrace(0, filters)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	t.collector.Quiet, t.collector.Hook = traceQuiet, t.facts.hook
	began := time.Now()
	err = t.follow(ctx, t.timeout, source, false)
	if err == nil && !t.full() && t.collector.Unfinished() { // wait for packets on their way
		err = t.follow(context.WithoutCancel(ctx), traceQuiet, source, true)
	}
	t.show(t.collector.Complete(time.Now(), true)...)
	if err = errors.Join(err, t.err); err == nil {
		err = t.report(log, source, time.Since(began))
	}
	switch {
	case err != nil:
		return err
	case t.shown == 0:
		return errors.New("no packet that matches was seen")
	case t.unknown:
		return &exitError{2, errAnswerNo}
	case t.failed:
		return errAnswerNo
	}
	return nil
}

// follow takes messages for a time, or until there are enough packets; those of new packets unless only known ones count.
func (t *tracer) follow(ctx context.Context, limit time.Duration, source *kernel.Trace, known bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	show := func(done ...*trace.Seen) {
		if t.show(done...); t.full() {
			cancel()
		}
	}
	return source.Run(ctx, traceQuiet/4, func(e *nft.TraceEvent) {
		if !known || !e.Starts() {
			show(t.collector.Add(e, time.Now()))
		}
	}, func() {
		t.overruns++
		t.collector.Lost()
	}, func() {
		show(t.collector.Complete(time.Now(), false)...)
	})
}

// full returns whether there is nothing more to show.
func (t *tracer) full() bool { return t.err != nil || t.count > 0 && t.shown >= t.count }

func (t *tracer) show(done ...*trace.Seen) {
	for _, p := range done {
		if p == nil || t.full() {
			continue
		}
		t.facts.refresh()
		t.shown++
		path := trace.Describe(p, t.facts.facts())
		switch path.Outcome {
		case explain.Refused, explain.Dropped, explain.Lost:
			t.failed = true
		case explain.Queued, explain.Bridged:
			t.unknown = true
		}
		t.err = t.write(path)
	}
}

// report prints how many packets were seen, and how many were not.
func (t *tracer) report(log io.Writer, source *kernel.Trace, took time.Duration) error {
	matched, traced, err := source.Counts()
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s shown: %d in %s\n", map[bool]string{true: "packets", false: "connections"}[t.all], t.shown, took.Round(time.Millisecond))
	if matched > traced {
		text += fmt.Sprintf("packets that matched and were not traced, above %d per second (--rate): %d\n", t.rate, matched-traced)
	}
	if t.overruns > 0 {
		text += fmt.Sprintf("messages of the kernel were lost, use a lower --rate; overruns: %d\n", t.overruns)
	}
	_, err = io.WriteString(log, text)
	return err
}

// traceFacts reads what a trace has to know of the ruleset when it is needed, once for each generation of it.
type traceFacts struct {
	conn       *kernel.Conn
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
	t := &traceFacts{conn: conn, node: node}
	t.forget()
	return t, err
}

func (t *traceFacts) forget() {
	t.hooks, t.rules = map[nft.TraceTable]map[string]nft.Hook{}, map[chainOf][]nft.TracedRule{}
	t.tables = map[nft.Family]*explain.Describer{}
}

// refresh forgets what was read if the ruleset changed since.
func (t *traceFacts) refresh() {
	if now, err := t.conn.Generation(); err != nil || now != t.generation {
		t.forget()
		t.generation = now
	}
}

// once returns what is known of a key, and reads it the first time. What cannot be read is empty: a trace goes on without it.
func once[K comparable, V any](known map[K]V, key K, read func() (V, error)) V {
	v, ok := known[key]
	if !ok {
		v, _ = read()
		known[key] = v
	}
	return v
}

// table is our table of a family; nil if it cannot be read.
func (t *traceFacts) table(f nft.Family) *explain.Describer {
	return once(t.tables, f, func() (*explain.Describer, error) {
		s, err := t.conn.Snapshot(f)
		if err != nil {
			return nil, err
		}
		return explain.NewDescriber(inspect.Read(s)), nil
	})
}

func (t *traceFacts) hook(table nft.TraceTable, chain string) (nft.Hook, bool) {
	h, ok := once(t.hooks, table, func() (map[string]nft.Hook, error) { return t.conn.TracedChains(table) })[chain]
	return h, ok
}

func (t *traceFacts) rule(table nft.TraceTable, chain string, handle uint64) (nft.TracedRule, int) {
	rules := once(t.rules, chainOf{table, chain}, func() ([]nft.TracedRule, error) { return t.conn.TracedRules(table, chain) })
	i := slices.IndexFunc(rules, func(r nft.TracedRule) bool { return r.Handle == handle })
	if i < 0 {
		return nft.TracedRule{}, 0
	}
	return rules[i], i + 1
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
		Node: func(f nft.Family) explain.Node { return t.node.node(t.conn, f) },
	}
}
