// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // rest_client_* of every client-go client
	"k8s.io/component-base/metrics/prometheus/slis"
	_ "k8s.io/component-base/metrics/prometheus/version" // kubernetes_build_info
)

// ProxyMode is what /proxyMode answers; upstream's e2e tests ask for it.
const ProxyMode = "nftables"

// component is our name in the debug pages.
const component = "nftproxy"

// maxBody bounds what PUT /debug/flags/v reads: a number.
const maxBody = 64

// Debug is what the debug endpoints show beside the metrics.
type Debug struct {
	// Configz is served as JSON: configuration documents by API group.
	Configz map[string]any
	// Flags are served by /flagz: values by name.
	Flags map[string]string
	// Version and Started are served by /statusz.
	Version   string
	GoVersion string
	Started   time.Time
	Now       func() time.Time
	// Profiling serves /debug/pprof and /debug/flags/v.
	Profiling bool
	// SetVerbosity changes the log level; the string is shown to the caller.
	SetVerbosity func(level string) (string, error)
	// More are further pages by path, such as /debug pages of the loop.
	More map[string]http.Handler
}

// ShowHidden makes metrics visible that component-base has hidden. It is global
// to the process, because component-base's switch is.
func ShowHidden() { metrics.SetShowHidden() }

// Gatherer returns our metrics together with those that libraries register in
// component-base's global registry: Go runtime, process, client-go, build.
func (m *Metrics) Gatherer() prometheus.Gatherer {
	return prometheus.Gatherers{m.registry, legacyregistry.DefaultGatherer}
}

// Handler serves the metrics server's paths.
func (m *Metrics) Handler(d Debug) http.Handler {
	pages := map[string]http.Handler{
		"/healthz":   http.HandlerFunc(healthz),
		"/proxyMode": http.HandlerFunc(proxyMode),
		"/metrics":   promhttp.HandlerFor(m.Gatherer(), promhttp.HandlerOpts{}),
		"/configz":   configz(d.Configz),
		"/flagz":     flagz(d.Flags),
	}
	sli := sliMux{pages}
	slis.SLIMetricsWithReset{}.Install(sli)
	for path, h := range d.More {
		pages[path] = h
	}
	if d.Profiling {
		addDebug(pages, d.SetVerbosity)
	}
	pages["/statusz"] = statusz(d, listed(pages))
	mux := http.NewServeMux()
	for path, h := range pages {
		mux.Handle(path, h)
	}
	return mux
}

// sliMux collects what component-base wants to install.
type sliMux struct{ pages map[string]http.Handler }

// Handle implements the interface that slis asks for.
func (s sliMux) Handle(path string, h http.Handler) { s.pages[path] = h }

// addDebug adds the pages that profiling switches on.
func addDebug(pages map[string]http.Handler, setVerbosity func(string) (string, error)) {
	pages["/debug/pprof/"] = http.HandlerFunc(pprof.Index)
	pages["/debug/pprof/cmdline"] = http.HandlerFunc(pprof.Cmdline)
	pages["/debug/pprof/profile"] = http.HandlerFunc(pprof.Profile)
	pages["/debug/pprof/symbol"] = http.HandlerFunc(pprof.Symbol)
	pages["/debug/pprof/trace"] = http.HandlerFunc(pprof.Trace)
	pages["/debug/flags/v"] = verbosity(setVerbosity)
}

// healthz answers that the server answers, and says so to the SLI metrics; the
// proxy's own health is on the other port.
func healthz(w http.ResponseWriter, r *http.Request) {
	_ = slis.ObserveHealthcheck(r.Context(), "ping", "healthz", slis.Success) // never fails
	text(w, http.StatusOK, "ok")
}

func proxyMode(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, ProxyMode) }

// configz serves the documents; they do not change while we run.
func configz(docs map[string]any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.Marshal(docs)
		if err != nil {
			http.Error(w, fmt.Sprintf("encode configuration: %v", err), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(body) // the peer is gone: nobody to tell
	})
}

// header begins /statusz and /flagz; people and scripts know it from others.
func header(page string) string {
	return fmt.Sprintf("\n%s %s\nWarning: for people who debug; the format is no interface.\n\n", component, page)
}

// flagz lists the flags' values, sorted.
func flagz(flags map[string]string) http.Handler {
	var b strings.Builder
	b.WriteString(header("flagz"))
	for _, name := range sortedKeys(flags) {
		fmt.Fprintf(&b, "%s=%s\n", name, flags[name])
	}
	page := b.String()
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, page) })
}

// statusz tells since when what runs, and where to look further.
func statusz(d Debug, paths []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		text(w, http.StatusOK, header("statusz")+fmt.Sprintf(
			"Started: %s\nUp: %s\nGo version: %s\nBinary version: %s\nPaths: %s\n",
			d.Started.Format(time.UnixDate), d.Now().Sub(d.Started).Truncate(time.Second),
			d.GoVersion, d.Version, strings.Join(paths, " ")))
	})
}

// verbosity serves PUT of a log level.
func verbosity(set func(string) (string, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut {
			text(w, http.StatusNotAcceptable, "only PUT of a number is served\n")
			return
		}
		body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
		if err == nil {
			var done string
			if done, err = set(strings.TrimSpace(string(body))); err == nil {
				text(w, http.StatusOK, done+"\n")
				return
			}
		}
		text(w, http.StatusBadRequest, err.Error()+"\n")
	})
}

// listed are the paths that /statusz names: all but the debug ones, which
// kube-proxy leaves out too.
func listed(pages map[string]http.Handler) []string {
	return slices.DeleteFunc(append(sortedKeys(pages), "/statusz"), func(path string) bool {
		return strings.HasPrefix(path, "/debug/")
	})
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// text writes a plain answer.
func text(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body) // the peer is gone: nobody to tell
}
