// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/kernel"
	"github.com/nftproxy/nftproxy/proxier"
	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/events"
	"github.com/nftproxy/nftproxy/proxier/health"
	"github.com/nftproxy/nftproxy/proxier/kube"
	"github.com/nftproxy/nftproxy/proxier/manifests"
	"github.com/nftproxy/nftproxy/proxier/metrics"
	"github.com/nftproxy/nftproxy/proxier/sysctl"
)

// parts are what runs beside each other while the proxy serves.
type parts struct {
	cfg       *config.Config
	metrics   *metrics.Metrics
	health    *health.Proxy
	listeners *health.Listeners
	events    *events.Recorder // nil without an API server
	source    source
	proxier   *proxier.Proxier
	routing   *routingInputs // nil without routing
	peers     peers          // of the connections to the API server
	more      []part         // ctsync, routing
}

// source delivers objects: an API server or a directory.
type source interface {
	Run(ctx context.Context, sink kube.Sink)
}

// part is one more thing that runs until its context is done.
type part struct {
	name string
	run  func(context.Context) error
}

// serve runs the proxy until ctx is done, a configuration file changes, or a
// part of it fails for good.
func serve(ctx context.Context, cfg *config.Config, opts *config.Options, flags *pflag.FlagSet) error {
	log := klog.FromContext(ctx)
	log.Info("Starting nftproxy", "version", programVersion(), "node", cfg.NodeName, "go", runtime.Version())
	watcher, err := config.NewWatcher(opts.ConfigFile, opts.OwnFile)
	if err != nil {
		return fmt.Errorf("watch the configuration: %w", err)
	}
	defer func() { _ = watcher.Close() }()
	if cause := watcher.Polls(); cause != nil {
		log.Info("Polling the configuration files, the kernel offers no watch", "err", cause)
	}
	p, err := assemble(ctx, cfg)
	if err != nil {
		return permission(err)
	}
	defer func() { _ = p.listeners.Close() }()
	// Nothing on the node is changed before the configuration, the credentials and the source are known to be usable.
	if err := prepareNode(ctx, cfg); err != nil {
		return err
	}
	removeLeftovers(log, "of a trace", (*kernel.Conn).RemoveTraces)
	group, ctx := errgroup.WithContext(ctx)
	start := func(name string, run func(context.Context) error) {
		group.Go(func() error { return ended(ctx, name, run(ctx)) })
	}
	start("lock", p.holdNamespace)
	start("configuration", func(ctx context.Context) error {
		check := func() error {
			_, err := opts.Load(flags, machine())
			return err
		}
		return watcher.Run(ctx, check, p.configInvalid)
	})
	p.startServers(start, debugPages(cfg, flags))
	if p.events != nil {
		start("events", p.events.Run)
		p.events.Node(false, "Starting", "")
	}
	for _, m := range p.more {
		start(m.name, m.run)
	}
	sink := p.proxier.Sink()
	if p.routing != nil {
		p.routing.Sink, sink = sink, p.routing
	}
	start("source", func(ctx context.Context) error { p.source.Run(ctx, sink); return nil })
	start("proxier", p.proxier.Run)
	return group.Wait()
}

// configInvalid reports that the configuration files were changed to something invalid, or, with nil, that they are again
// as they were: the proxy keeps the configuration it has.
func (p *parts) configInvalid(err error) {
	p.metrics.ConfigValid(err == nil)
	p.health.SetDegraded("configuration", "")
	if err != nil {
		p.health.SetDegraded("configuration", "the files were changed and are invalid; the previous configuration is in use")
		klog.ErrorS(err, "The configuration was changed and is invalid; the previous one stays in use")
		return
	}
	klog.InfoS("The configuration is valid again")
}

// ended makes an error of the end of a part, unless ctx ended it: a part that is gone must not leave the others running as if
// all were well.
func ended(ctx context.Context, name string, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // ctx ended the part
	}
	if err == nil {
		err = errEnded
	}
	return fmt.Errorf("%s: %w", name, err)
}

var errEnded = errors.New("ended unexpectedly")

// families are those that the proxy keeps a table for: both, unless the node has no IPv6 (booted with
// ipv6.disable=1), where /proc/net/if_inet6 is missing.
func families() ([]nft.Family, []v1.IPFamily) {
	if _, err := os.Stat("/proc/net/if_inet6"); errors.Is(err, fs.ErrNotExist) {
		return []nft.Family{nft.IPv4}, []v1.IPFamily{v1.IPv4Protocol}
	}
	return nft.Families(), []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
}

// assemble makes the parts; nothing runs yet.
func assemble(ctx context.Context, cfg *config.Config) (*parts, error) {
	tables, ipFamilies := families()
	release := reserveHeap()
	p := &parts{
		cfg:     cfg,
		metrics: metrics.New(ipFamilies...),
		health:  health.New(cfg.UnhealthyAfter(), time.Now, ipFamilies...),
	}
	if cfg.ShowHiddenMetricsFor != "" {
		metrics.ShowHidden()
	}
	p.listeners = health.NewListeners(p.health, p.healthPortFailed)
	if err := p.addSource(ctx); err != nil {
		return nil, err
	}
	options := proxier.Options{
		Config: cfg, Families: tables, Metrics: p.metrics, Health: p.health, Listeners: p.listeners,
		APIServer: p.peers.list,
		FirstSync: func() {
			release()
			go takeOver(ctx)
			if !cfg.Own.Routing.Enabled() {
				go removeRouting(ctx)
			}
		},
	}
	if p.events != nil {
		options.Recorder = p.events
	}
	if err := p.addFlows(&options); err != nil {
		return nil, err
	}
	p.addLocalhost(&options)
	if err := p.addRouting(ctx); err != nil {
		return nil, err
	}
	p.proxier = proxier.New(options)
	p.metrics.DropCountersFrom(p.proxier.DropCounters)
	if cfg.Own.CountConnections {
		p.metrics.ConnectionsFrom(p.proxier.Connections)
	}
	return p, nil
}

// addSource makes the source of objects, and for an API server the recorder.
func (p *parts) addSource(ctx context.Context) (err error) {
	if p.cfg.Manifests != "" {
		p.source, err = manifests.New(p.cfg.Manifests, p.cfg.NodeName)
		return err
	}
	load := func() (*rest.Config, error) {
		client, err := p.cfg.Client.REST("nftproxy/" + programVersion())
		if err == nil {
			p.peers.follow(client)
		}
		return client, err
	}
	client, err := load()
	if err != nil {
		return err
	}
	klog.FromContext(ctx).V(1).Info("Objects come from the API server", "server", client.Host)
	if p.events, err = events.New(load, p.cfg.NodeName); err != nil {
		return err
	}
	path := p.cfg.Client.Kubeconfig
	var watcher *config.Watcher
	if path != "" {
		if watcher, err = config.NewWatcher(path); err != nil {
			return err
		}
	}
	api, err := kube.NewAPI(load, p.cfg.NodeName)
	if err != nil {
		return err
	}
	p.source = api
	p.metrics.SourcesFrom(func() (out []metrics.Source) {
		for _, s := range api.Status() {
			out = append(out, metrics.Source{Kind: s.Kind.String(), Connected: s.Connected, LastContact: s.LastContact})
		}
		return out
	})
	if path != "" {
		p.more = append(p.more, part{"kubeconfig", func(ctx context.Context) error {
			return followKubeconfig(ctx, path, watcher, api)
		}})
	}
	return nil
}

// followKubeconfig makes the source use a kubeconfig as soon as it is replaced, until ctx is done. The watcher was made before
// the source, so that no change falls between. A kubeconfig that cannot be used changes nothing.
func followKubeconfig(ctx context.Context, path string, watcher *config.Watcher, api *kube.API) error {
	defer func() { _ = watcher.Close() }()
	log := klog.FromContext(ctx)
	invalid := func(err error) {
		if err != nil {
			log.Error(err, "The kubeconfig was changed and is invalid; the previous one stays in use", "path", path)
		}
	}
	for watcher.Run(ctx, api.Reload, invalid) != nil {
		log.Info("Using the changed kubeconfig", "path", path)
	}
	return nil
}

// startServers starts the health and metrics servers that are wanted.
func (p *parts) startServers(start func(string, func(context.Context) error), debug metrics.Debug) {
	if p.cfg.Healthz != "" {
		handler := p.health.Handler(health.Counter{Healthz: p.metrics.HealthzServed, Livez: p.metrics.LivezServed})
		start("healthz", p.server("healthz", p.cfg.Healthz, "FailedToStartProxierHealthcheck", handler))
	}
	if p.cfg.Metrics != "" {
		start("metrics", p.server("metrics", p.cfg.Metrics, "FailedToStartMetricServer", p.metrics.Handler(debug)))
	}
}

// eventTimeout bounds how long a process that ends waits for its last Event.
const eventTimeout = 2 * time.Second

// server returns the function that runs a server. That it cannot listen is an Event with the given reason, whether it is tried
// again or is fatal.
func (p *parts) server(name, addr, reason string, handler http.Handler) func(context.Context) error {
	last := ""
	s := health.Server{Name: name, Addr: addr, Handler: handler, HardFail: p.cfg.BindHardFail, Failed: func(err error) {
		if last == err.Error() { // it is tried again every few seconds
			return
		}
		last = err.Error()
		klog.ErrorS(err, "Server cannot listen, will try again")
		if p.events != nil {
			p.events.Node(true, reason, err.Error())
		}
	}}
	return func(ctx context.Context) error {
		err := s.Run(ctx)
		if err == nil || p.events == nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, eventTimeout)
		defer cancel()
		return errors.Join(err, p.events.WriteNow(ctx, reason, err.Error()))
	}
}

// debugPages are what the metrics server shows beside the metrics.
func debugPages(cfg *config.Config, flags *pflag.FlagSet) metrics.Debug {
	d := metrics.Debug{
		Configz: map[string]any{
			"kubeproxy.config.k8s.io": cfg.External,
			"nftproxy.io":             &cfg.Own,
		},
		Profiling: cfg.Profiling, SetVerbosity: logs.GlogSetter,
	}
	if cfg.Gates.Flagz() {
		d.Flags = map[string]string{}
		flags.VisitAll(func(f *pflag.Flag) { d.Flags[f.Name] = f.Value.String() })
	}
	if cfg.Gates.Statusz() {
		d.Status = &metrics.Status{Version: programVersion(), GoVersion: runtime.Version(), Started: time.Now(), Now: time.Now}
	}
	return d
}

// prepareNode does what needs more than CAP_NET_ADMIN: conntrack sysctls, whose
// failure is fatal as in kube-proxy, and the OOM score, whose failure is not.
func prepareNode(ctx context.Context, cfg *config.Config) error {
	log := klog.FromContext(ctx)
	sys := sysctl.System{Root: "/"}
	if err := sys.SetOOMScore(cfg.OOMScoreAdj); err != nil {
		log.V(2).Info("OOM score not set", "err", err)
	}
	changes, err := sys.ApplyConntrack(cfg.Conntrack, sys.CPUs(runtime.NumCPU()))
	for _, c := range changes {
		log.Info("Set parameter", "path", c.Path, "before", c.Before, "now", c.Now)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("conntrack parameters: %w (is the module nf_conntrack loaded?)", err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS): // containers see /proc/sys read-only
		return fmt.Errorf("conntrack parameters: %w (run --init-only with full privileges first, or set conntrack.maxPerCore to 0)", err)
	case err != nil:
		return fmt.Errorf("conntrack parameters: %w", err)
	}
	return nil
}
