// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Manifests is the source that reads a directory of files: *.yaml and *.yml with one or more documents, *.json with one
// or more objects, each a Service, EndpointSlice, Node (of which only our own counts), ServiceCIDR or a list of such
// things. Other kinds, other files, hidden files and directories below are left alone. What a manifest leaves out is
// as the API server would have it, but for addresses: a Service without clusterIP is not proxied.
//
// Changes count when their writer closes the file, renames it or swaps a symbolic link (as the kubelet does it with
// ConfigMaps). What cannot be read leaves the last good state of the objects concerned, and is told as a problem; an
// object that several places define is as the first one has it, by the names of the files and within a file from top
// to bottom. Links to files elsewhere, and file systems that tell nothing, are looked at every ten seconds.
type Manifests struct {
	dir, node string
	patrol    time.Duration
}

// NewManifests returns a source for the files in dir. Of Nodes only the one of that name counts.
func NewManifests(dir, nodeName string) (*Manifests, error) {
	switch st, err := os.Stat(dir); {
	case err != nil:
		return nil, fmt.Errorf("manifests: %w", err)
	case !st.IsDir():
		return nil, fmt.Errorf("manifests: %s: %w", dir, syscall.ENOTDIR)
	}
	return &Manifests{dir: dir, node: nodeName, patrol: patrol}, nil
}

const (
	// writing is how long a file that is being written may be silent until it is read nevertheless: its writer may keep
	// it open, or be a link.
	writing = 2 * time.Second
	// absence is how long a file must be away to be gone: editors rename the old one before they write the new one.
	absence = 300 * time.Millisecond
	// patrol is how often everything is looked at without a reason, and comeback the same while the directory is away.
	patrol   = 10 * time.Second
	comeback = time.Second
)

// Run delivers everything to sink until ctx ends. It returns after the last call to sink. It must be called once.
func (m *Manifests) Run(ctx context.Context, sink Sink) {
	r := manifestRun{
		dir: m.dir, every: m.patrol, lib: newLibrary(sink, m.node), log: klog.FromContext(ctx),
		due: map[string]time.Time{}, missing: map[string]time.Time{},
	}
	r.watch()
	defer func() { r.stop() }() // whichever watch it is by then
	r.look(true)
	for _, k := range Kinds() {
		sink.Synced(k)
	}
	for {
		timer := time.NewTimer(r.wait(time.Now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case batch, ok := <-r.events:
			if !ok {
				r.stop()
				r.watch()
			}
			r.look(r.note(batch) || !ok)
		case <-timer.C:
			r.look(!time.Now().Before(r.next))
		}
		timer.Stop()
	}
}

// manifestRun is a run of the source. One goroutine owns it.
type manifestRun struct {
	dir    string
	every  time.Duration // between patrols
	lib    *library
	log    klog.Logger
	events <-chan []dirEvent // nil while there is no watch
	stop   func()
	due    map[string]time.Time // when to look at a file; what is not in it is at rest
	// missing tells since when a file is away that is not yet taken for gone.
	missing map[string]time.Time
	next    time.Time // when to look at all of them
	seen    string    // the ignored kinds that were logged
}

// watch starts to watch the directory. Where that does not work, patrols have to do.
func (r *manifestRun) watch() {
	var err error
	if r.events, r.stop, err = watchDir(r.dir); err != nil {
		r.events, r.stop = nil, func() {}
		r.log.V(2).Info("Cannot watch the manifest directory, looking at it every now and then", "dir", r.dir, "err", err)
	}
}

// wait returns how long there is nothing to look at.
func (r *manifestRun) wait(now time.Time) time.Duration {
	first := r.next
	for _, at := range r.due {
		if at.Before(first) {
			first = at
		}
	}
	return max(first.Sub(now), 0)
}

// note takes what happened, and tells whether that makes all files worth a look.
func (r *manifestRun) note(batch []dirEvent) (all bool) {
	now := time.Now()
	for i, e := range batch {
		if i > 0 && e.renames(batch[i-1]) && isManifest(e.name) && isManifest(batch[i-1].name) {
			// The old name is gone for good: nobody waits for the new one to be written.
			r.missing[batch[i-1].name] = now.Add(-absence)
		}
		switch {
		case e.mask&unix.IN_Q_OVERFLOW != 0, strings.HasPrefix(e.name, "..") && e.mask&unix.IN_MOVED_TO != 0:
			all = true // events were lost; or a ConfigMap has a new version
		case !isManifest(e.name):
		case e.mask&unix.IN_CREATE != 0 && r.isLink(e.name):
			r.due[e.name] = now
		case e.mask&(unix.IN_MODIFY|unix.IN_CREATE) != 0:
			r.due[e.name] = now.Add(writing)
		case e.mask&unix.IN_ATTRIB != 0:
			if _, busy := r.due[e.name]; !busy {
				r.due[e.name] = now
			}
		default:
			r.due[e.name] = now
		}
	}
	return all
}

// isLink tells of a symbolic link, which nobody will close after writing.
func (r *manifestRun) isLink(name string) bool {
	st, err := os.Lstat(filepath.Join(r.dir, name))
	return err == nil && st.Mode()&fs.ModeSymlink != 0
}

func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// look reads what is due, on a patrol also what looks different from before, and hands it over.
func (r *manifestRun) look(patrolling bool) {
	now := time.Now()
	if patrolling {
		r.patrol(now)
	}
	var contents []content
	for _, name := range slices.Sorted(maps.Keys(r.due)) {
		if r.due[name].After(now) {
			continue
		}
		delete(r.due, name)
		c := r.read(name)
		if c.gone && !r.absent(name, now) {
			continue
		}
		contents = append(contents, c)
	}
	if len(contents) == 0 {
		return
	}
	r.lib.update(contents)
	if kinds := r.lib.ignoredKinds(); kinds != r.seen {
		r.seen = kinds
		r.log.Info("Manifests of other kinds are ignored", "dir", r.dir, "kinds", kinds)
	}
}

// patrol makes due what looks different from before and is not being written. While the directory cannot be read
// nothing is said to be gone.
func (r *manifestRun) patrol(now time.Time) {
	r.next = now.Add(r.every)
	if r.events == nil {
		r.watch()
	}
	entries, err := os.ReadDir(r.dir)
	r.lib.report(Ref{KindFile, Name{"", r.dir}}, err)
	if err != nil {
		r.next = now.Add(comeback)
		return
	}
	names := map[string]bool{}
	for _, e := range entries {
		if isManifest(e.Name()) {
			names[e.Name()] = true
		}
	}
	for path := range r.lib.files {
		names[filepath.Base(path)] = true
	}
	for name := range names {
		path := filepath.Join(r.dir, name)
		st, err := stampOf(path)
		f := r.lib.files[path]
		if _, busy := r.due[name]; !busy && (err != nil || f == nil || f.stamp != st) {
			r.due[name] = now
		}
	}
}

// absent tells whether a file that is away has been so for long enough, in a directory that is there.
func (r *manifestRun) absent(name string, now time.Time) bool {
	since, known := r.missing[name]
	if !known {
		since = now
		r.missing[name] = now
	}
	if wait := since.Add(absence).Sub(now); wait > 0 {
		r.due[name] = now.Add(wait)
		return false
	}
	delete(r.missing, name)
	_, err := os.Stat(r.dir)
	return err == nil
}

// read reads a file.
func (r *manifestRun) read(name string) content {
	c := content{path: filepath.Join(r.dir, name)}
	c.stamp, c.err = stampOf(c.path) // before the contents: a change in between shows on the next patrol
	if c.err == nil {
		c.data, c.err = os.ReadFile(c.path)
	}
	if c.gone = errors.Is(c.err, fs.ErrNotExist); c.gone {
		c.err = nil
	} else {
		delete(r.missing, name)
	}
	return c
}

// stamp is what tells a file that was changed or replaced.
type stamp struct {
	dev, ino          uint64
	size              int64
	modified, changed syscall.Timespec
}

// errNotFile says that there is something else than a file by a manifest's name.
var errNotFile = errors.New("not a file")

// stampOf follows symbolic links.
func stampOf(path string) (stamp, error) {
	st, err := os.Stat(path)
	if err != nil {
		return stamp{}, err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || !st.Mode().IsRegular() {
		return stamp{}, fmt.Errorf("%s: %w", path, errNotFile)
	}
	return stamp{dev: sys.Dev, ino: sys.Ino, size: sys.Size, modified: sys.Mtim, changed: sys.Ctim}, nil
}
