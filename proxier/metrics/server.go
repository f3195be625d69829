// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
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
	"k8s.io/klog/v2"
)

// ProxyMode is the answer of /proxyMode, which upstream's e2e tests read.
const ProxyMode = "nftables"

// Debug is the content of the debug pages beside the metrics.
type Debug struct {
	// Configz is served as JSON: configuration documents by API group.
	Configz map[string]any
	// Flags are served by /flagz, unless nil: values by name.
	Flags map[string]string
	// Status is served by /statusz, unless nil.
	Status *Status
	// Profiling serves /debug/pprof and /debug/flags/v.
	Profiling bool
	// SetVerbosity changes the log level; the string is shown to the caller.
	SetVerbosity func(level string) (string, error)
}

// Status is the content of /statusz.
type Status struct {
	Version, GoVersion string
	Started            time.Time
	Now                func() time.Time
}

// ShowHidden makes metrics visible that component-base has hidden. It is global to the process, because
// component-base's switch is.
func ShowHidden() { metrics.SetShowHidden() }

// Gatherer returns these metrics together with those that libraries register in component-base's global registry: Go
// runtime, process, client-go, build.
func (m *Metrics) Gatherer() prometheus.Gatherer {
	return prometheus.Gatherers{m.registry, legacyregistry.DefaultGatherer}
}

// pages are handlers by path.
type pages map[string]http.Handler

// Handle implements the interface that component-base's pages need.
func (p pages) Handle(path string, h http.Handler) { p[path] = h }

// Handler serves the metrics server's paths. /statusz and /flagz are our own: upstream's are in k8s.io/apiserver, which
// would add some 60 modules for 30 lines.
func (m *Metrics) Handler(d Debug) http.Handler {
	p := pages{
		"/healthz":   http.HandlerFunc(healthz),
		"/proxyMode": text(ProxyMode),
		// A series that is invalid, or exists twice, is logged and left out; the others are served.
		"/metrics": promhttp.HandlerFor(m.Gatherer(), promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, ErrorLog: scrapeLog{}}),
		"/configz": configz(d.Configz),
	}
	slis.SLIMetricsWithReset{}.Install(p)
	if d.Flags != nil {
		page := header("flagz")
		for _, name := range slices.Sorted(maps.Keys(d.Flags)) {
			page += name + "=" + d.Flags[name] + "\n"
		}
		p["/flagz"] = text(page)
	}
	if d.Status != nil {
		paths := slices.Sorted(maps.Keys(p)) // without the debug pages, which kube-proxy does not list either
		p["/statusz"] = statusz(*d.Status, append(paths, "/statusz"))
	}
	if d.Profiling {
		p["/debug/pprof/"] = http.HandlerFunc(pprof.Index)
		p["/debug/pprof/cmdline"] = http.HandlerFunc(pprof.Cmdline)
		p["/debug/pprof/profile"] = http.HandlerFunc(pprof.Profile)
		p["/debug/pprof/symbol"] = http.HandlerFunc(pprof.Symbol)
		p["/debug/pprof/trace"] = http.HandlerFunc(pprof.Trace)
		p["/debug/flags/v"] = verbosity(d.SetVerbosity)
	}
	mux := http.NewServeMux()
	for path, h := range p {
		mux.Handle(path, h)
	}
	return mux
}

// scrapeLog logs errors of a scrape.
type scrapeLog struct{}

// Println implements promhttp.Logger.
func (scrapeLog) Println(v ...any) {
	klog.ErrorS(nil, "Metrics are incomplete", "err", fmt.Sprint(v...))
}

// healthz answers that the server answers, and counts that for the SLI metrics; the proxy's own health is on the other
// port.
func healthz(w http.ResponseWriter, r *http.Request) {
	_ = slis.ObserveHealthcheck(r.Context(), "ping", "healthz", slis.Success) // never fails
	reply(w, http.StatusOK, "ok")
}

// configz serves the documents.
func configz(docs map[string]any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.Marshal(docs)
		if err != nil {
			http.Error(w, fmt.Sprintf("encode configuration: %v", err), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(body) // a client that is gone needs no answer
	})
}

// header begins /statusz and /flagz, in the form of other Kubernetes components.
func header(page string) string {
	return fmt.Sprintf("\nnftproxy %s\nWarning: for people who debug; the format is no interface.\n\n", page)
}

// statusz serves the versions, the start, and the paths of the other pages.
func statusz(s Status, paths []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, header("statusz")+fmt.Sprintf(
			"Started: %s\nUp: %s\nGo version: %s\nBinary version: %s\nPaths: %s\n",
			s.Started.Format(time.UnixDate), s.Now().Sub(s.Started).Truncate(time.Second),
			s.GoVersion, s.Version, strings.Join(paths, " ")))
	})
}

// maxBody limits what PUT /debug/flags/v reads: a number.
const maxBody = 64

// verbosity serves PUT of a log level.
func verbosity(set func(string) (string, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut {
			reply(w, http.StatusNotAcceptable, "only PUT of a number is served\n")
			return
		}
		body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
		var done string
		if err == nil {
			done, err = set(strings.TrimSpace(string(body)))
		}
		if err != nil {
			reply(w, http.StatusBadRequest, err.Error()+"\n")
			return
		}
		reply(w, http.StatusOK, done+"\n")
	})
}

// text serves a constant page.
func text(page string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, page) })
}

// reply writes a plain answer.
func reply(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body) // a client that is gone needs no answer
}
