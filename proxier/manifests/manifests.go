// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package manifests is the source that reads Kubernetes objects from a directory of files in place of an API server.
//
// In: *.yaml and *.yml with one or more documents, *.json with one or more values, each a Service, EndpointSlice, Node (only
// the own one counts), ServiceCIDR or a list of them. Other kinds, other files, hidden files and subdirectories are ignored.
// Out: the objects, to a [kube.Sink]. The package never writes a file, and never removes an object because a file
// cannot be read or decoded.
//
// What a manifest leaves out is as the API server's defaults, but for addresses: a Service without clusterIP is not
// proxied. An object that several places define is as the first place defines it, by the names of the files and within a
// file from top to bottom. What cannot be decoded keeps the last good state of all objects of its file that the rest does not
// define; so does a file that is empty, or whose last line has no newline, since both may be cut short. Writers that replace
// a file by rename avoid that.
//
// A file that changes is decoded as a whole: 1.1 s for 10,000 Services with three endpoints each in one file of YAML, on two
// cores. With a file per Service a change takes 0.1 s, most of it to look at the other files.
package manifests

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/internal/fswatch"
	"github.com/nftproxy/nftproxy/proxier/kube"
)

const (
	// poll is how often all files are compared without an event: file systems of other machines report none, and links may
	// lead to other directories.
	poll = 10 * time.Second
	// absence is how long a file must be missing to be gone: editors remove the old one before they write the new one.
	absence = 300 * time.Millisecond
	// retry is how often a directory that cannot be read is tried.
	retry = time.Second
)

// Source is a directory of manifests.
type Source struct {
	dir, node string
	decoder   decoder
	poll      time.Duration
}

// New returns a source for the files in dir. Of Nodes only the one of that name counts.
func New(dir, nodeName string) (*Source, error) {
	switch st, err := os.Stat(dir); {
	case err != nil:
		return nil, fmt.Errorf("manifests: %w", err)
	case !st.IsDir():
		return nil, fmt.Errorf("manifests: %s: %w", dir, syscall.ENOTDIR)
	}
	return &Source{dir: dir, node: nodeName, decoder: newDecoder(), poll: poll}, nil
}

// Run delivers everything to sink until ctx ends. It returns after the last call to sink. It must be called once.
func (s *Source) Run(ctx context.Context, sink kube.Sink) {
	r := s.newReader(klog.FromContext(ctx), sink)
	var err error
	if r.watcher, err = fswatch.New(s.dir); err != nil {
		r.log.V(2).Info("Cannot watch the manifest directory, polling it", "dir", s.dir, "interval", s.poll, "err", err)
	} else {
		defer func() { _ = r.watcher.Close() }()
	}
	r.read()
	for _, c := range r.caches {
		c.Synced()
	}
	for r.wait(ctx) {
		r.read()
	}
}

// reader reads the directory for one run. One goroutine owns it.
type reader struct {
	*Source
	log      klog.Logger
	watcher  *fswatch.Watcher // nil: poll
	files    map[string]*file // by path
	caches   []*kube.Cache    // by kind
	problems *kube.Cache      // of files
	again    time.Duration    // when to read again without an event
	ignored  string           // the ignored kinds last logged
}

// file is what is known of one file.
type file struct {
	version fs.FileInfo // of what was read last
	missing time.Time   // since when; zero if the file is there
	// definitions are what the file defines now, and behind that what it defined before as far as it must not be lost.
	definitions []definition
	problems    []error         // of the file, beside those of its definitions
	ignored     map[string]bool // kinds that the proxy does not use
}

// newReader returns a reader that knows nothing yet.
func (s *Source) newReader(log klog.Logger, sink kube.Sink) *reader {
	r := &reader{Source: s, log: log, files: map[string]*file{}, problems: kube.NewCache(kube.KindFile, sink)}
	for _, k := range kube.Kinds() {
		r.caches = append(r.caches, kube.NewCache(k, sink))
	}
	return r
}

// wait blocks until the directory is worth another look, and returns false when ctx ends.
func (r *reader) wait(ctx context.Context) bool {
	look, cancel := context.WithTimeout(ctx, r.again)
	defer cancel()
	if r.watcher == nil {
		<-look.Done()
	} else {
		r.watcher.Wait(look)
	}
	return ctx.Err() == nil
}

// read reads what has changed in the directory and brings the sink up to date.
func (r *reader) read() {
	r.again = r.poll
	entries, err := os.ReadDir(r.dir)
	if err != nil { // nothing is removed while the directory is away
		r.again = retry
		r.problems.Set(fileName(r.dir), nil, []error{err})
		return
	}
	r.problems.Set(fileName(r.dir), nil, nil)
	present := map[string]bool{}
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, e := range entries {
		if !isManifest(e.Name()) {
			continue
		}
		path := filepath.Join(r.dir, e.Name())
		f := r.files[path]
		if f == nil {
			f = &file{}
			r.files[path] = f
		}
		present[path] = true
		group.Go(func() error {
			f.read(r.decoder, path)
			return nil
		})
	}
	_ = group.Wait()
	// A file that is missing for a moment is being replaced.
	for path, f := range r.files {
		switch {
		case present[path]:
			f.missing = time.Time{}
		case f.missing.IsZero():
			f.missing, r.again = time.Now(), absence
		case time.Since(f.missing) < absence:
			r.again = absence
		default:
			delete(r.files, path)
		}
	}
	r.publish()
}

// fileName is the name of a file or directory in reports of problems.
func fileName(path string) kube.Name { return kube.Name{Name: kube.Printable(path)} }

// isManifest reports whether a file of that name is read.
func isManifest(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return !strings.HasPrefix(name, ".")
	}
	return false
}

// read reads the file again if it is another version than before.
func (f *file) read(d decoder, path string) {
	version, err := os.Stat(path) // before the contents: a change in between shows at the next look
	if err == nil && !version.Mode().IsRegular() {
		err = errNotFile
	}
	if err == nil && f.version != nil && os.SameFile(f.version, version) && f.version.Size() == version.Size() && f.version.ModTime().Equal(version.ModTime()) {
		return
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // a link that leads nowhere just now, or removed since the directory was read
	case err != nil:
		f.version, f.problems = nil, []error{located(kube.Printable(path), err)}
	default:
		f.version = version
		f.take(path, d.file(path, data))
	}
}

// errNotFile reports a directory or device with the name of a manifest.
var errNotFile = errors.New("not a regular file")

// take replaces what the file defines by its present contents. If those are not complete, the former definitions of all
// objects that they lack stay.
func (f *file) take(path string, c *contents) {
	former := map[kube.Ref]definition{}
	for _, d := range f.definitions {
		former[d.ref] = d
	}
	f.problems, f.ignored, f.definitions = c.broken, c.ignored, c.definitions
	switch last := len(c.definitions) - 1; {
	case len(former) == 0:
	case c.empty:
		f.problems = append(f.problems, located(kube.Printable(path), errEmpty))
	case c.cut:
		f.problems = append(f.problems, located(kube.Printable(path), errCut))
		if last >= 0 {
			if d, known := former[c.definitions[last].ref]; known {
				c.definitions[last] = d
			}
		}
	}
	if len(f.problems) == 0 {
		return
	}
	for _, d := range c.definitions {
		delete(former, d.ref)
	}
	for _, ref := range slices.SortedFunc(maps.Keys(former), func(a, b kube.Ref) int { return a.Name.Compare(b.Name) }) {
		f.definitions = append(f.definitions, former[ref])
	}
}

// publish hands the state of all files to the sink. Additions come before removals, so that an endpoint that only moved to
// another slice is never missing.
func (r *reader) publish() {
	type state struct {
		first    *definition
		problems []error
	}
	states := map[kube.Ref]*state{} // by object: the first definition counts
	var order []kube.Ref
	listed := make([]map[kube.Name]bool, len(r.caches))
	for k := range listed {
		listed[k] = map[kube.Name]bool{}
	}
	files, ignored := map[kube.Name]bool{fileName(r.dir): true}, map[string]bool{}
	for _, path := range slices.SortedFunc(maps.Keys(r.files), func(a, b string) int {
		if left, right := r.files[a].missing.IsZero(), r.files[b].missing.IsZero(); left != right {
			return map[bool]int{true: -1, false: 1}[left] // what is being renamed counts as the last one
		}
		return strings.Compare(a, b)
	}) {
		f := r.files[path]
		files[fileName(path)] = true
		r.problems.Set(fileName(path), nil, f.problems)
		maps.Copy(ignored, f.ignored)
		for i := range f.definitions {
			d := &f.definitions[i]
			if d.ref.Kind == kube.KindNode && d.ref.Name.Name != r.node {
				continue
			}
			s := states[d.ref]
			if s == nil {
				s = &state{first: d}
				states[d.ref] = s
				order = append(order, d.ref)
				listed[d.ref.Kind][d.ref.Name] = true
			} else if f.missing.IsZero() {
				err := fmt.Errorf("%s: also in %s: %w", d.ref, s.first.where, errDuplicate)
				s.problems = append(s.problems, located(d.where.String(), err))
			}
			s.problems = append(s.problems, d.problems...)
		}
	}
	for _, ref := range order {
		s := states[ref]
		r.caches[ref.Kind].Set(ref.Name, s.first.object, s.problems) // which passes on what has changed
	}
	for k, c := range r.caches {
		c.Retain(listed[k])
	}
	r.problems.Retain(files)
	if list := strings.Join(slices.Sorted(maps.Keys(ignored)), ", "); list != r.ignored {
		r.ignored = list
		r.log.Info("Manifests of other kinds are ignored", "dir", r.dir, "kinds", list)
	}
}
