// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// names are the full texts of all of upstream's tests.
func (o options) names(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(o.bin, "e2e.test"), "--list-tests").Output()
	if err != nil {
		return nil, fmt.Errorf("e2e.test --list-tests: %w", err)
	}
	return listed(bytes.NewReader(out))
}

// run runs the suite: first what may run side by side, then the rest one by one, then once more what failed. The results
// are saved after every step, so that a run that is broken off is not lost.
func (o options) run(ctx context.Context) error {
	tests, err := o.tests(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	if o.suite == suiteFull {
		if err := saveTests(o.out, tests); err != nil {
			return err
		}
	}
	if tests, err = o.narrow(tests); err != nil {
		return err
	}
	r, err := load(o.out, o.suite, o.proxy)
	if err != nil {
		return err
	}
	switch {
	case o.again:
		tests = unpassed(tests, r.Results)
	case o.only == "":
		r.Results, r.Minutes = nil, 0
	}
	before := r.Minutes
	if o.nodes, err = o.schedulable(ctx); err != nil {
		return err
	}
	started := time.Now()
	r.Date, r.Versions = started.UTC(), o.versions(ctx)
	beside, alone := parts(tests)
	var fresh []result
	for attempt := 1; attempt <= o.attempts && len(beside)+len(alone) > 0; attempt++ {
		for _, part := range []struct {
			tests []test
			procs int
		}{{beside, o.procs}, {alone, 1}} {
			got, err := o.attempt(ctx, part.tests, part.procs)
			if err != nil {
				return err
			}
			fresh = merge(fresh, got)
			r.Results = merge(without(r.Results, got, attempt), got)
			r.Minutes = before + time.Since(started).Minutes()
			if err := r.save(o.out); err != nil {
				return err
			}
		}
		beside, alone = in(beside, fresh, failed, missing), in(alone, fresh, failed, missing)
	}
	return verdict(fresh)
}

// unpassed are the tests without a kept result that they passed.
func unpassed(tests []test, results []result) []test {
	good := in(tests, results, passed)
	return slices.DeleteFunc(slices.Clone(tests), func(t test) bool { return slices.Contains(good, t) })
}

// without drops results of an earlier run, so that attempts count within this one.
func without(old, fresh []result, attempt int) []result {
	if attempt > 1 {
		return old
	}
	var out []result
	for _, o := range old {
		if merged := merge([]result{o}, fresh); len(merged) > len(fresh) {
			out = append(out, o)
		}
	}
	return out
}

// verdict prints what became of the run, for a person and for the scripts that look for such a line.
func verdict(results []result) error {
	for _, r := range results {
		if r.State == failed || r.State == missing {
			fmt.Printf("%s: %s\n", r.State, r.Name)
		}
	}
	bad := count(results, failed) + count(results, missing)
	fmt.Printf("%d passed, %d failed, %d skipped\n", count(results, passed), bad, count(results, skipped))
	if bad > 0 {
		return fmt.Errorf("%d of %d tests did not pass", bad, len(results))
	}
	return nil
}

// narrow keeps the tests that -only asks for.
func (o options) narrow(tests []test) ([]test, error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return nil, err
	}
	var out []test
	for _, t := range tests {
		if only.MatchString(t.Name) {
			out = append(out, t)
		}
	}
	return out, nil
}

// attempt runs tests once. That some fail is a result, and no error.
func (o options) attempt(ctx context.Context, tests []test, procs int) ([]result, error) {
	if len(tests) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	dir, err := filepath.Abs(filepath.Join(o.out, fmt.Sprintf("%s-%s-%s", o.suite, o.proxy, time.Now().UTC().Format("150405"))))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	fmt.Printf("%d tests, %d at a time, log in %s\n", len(tests), procs, log.Name())
	cmd := o.ginkgo(ctx, tests, procs, dir)
	cmd.Stdout, cmd.Stderr = log, log
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("ginkgo: %w", err)
	}
	report, readErr := os.ReadFile(filepath.Join(dir, "junit_01.xml"))
	if readErr != nil {
		return nil, fmt.Errorf("%s has the reason why there is no report: %w", log.Name(), errors.Join(err, readErr))
	}
	results, err := readJUnit(report, tests)
	if err == nil {
		fmt.Printf("%d passed, %d failed, %d skipped themselves, %d missing\n",
			count(results, passed), count(results, failed), count(results, skipped), count(results, missing))
	}
	return results, err
}

// ginkgo is the command that runs tests and leaves upstream's report in a directory.
func (o options) ginkgo(ctx context.Context, tests []test, procs int, dir string) *exec.Cmd {
	args := []string{
		filepath.Join(o.bin, "ginkgo"), "run", "--procs=" + strconv.Itoa(procs), "--no-color", "--timeout=" + o.timeout.String(),
		"--focus=" + focus(tests), filepath.Join(o.bin, "e2e.test"), "--",
		"--kubeconfig=" + o.kubeconfig, "--kubectl-path=" + o.kubectl, "--provider=skeleton", "--report-dir=" + dir,
		"--dump-logs-on-failure=false", "--disable-log-dump", "--num-nodes=" + strconv.Itoa(o.nodes),
	}
	if o.netns != "" {
		args = append([]string{"nsenter", "--net=" + o.netns}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	// Interrupted, ginkgo lets the tests clean up and still writes the report; killed, it would do neither.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 2 * time.Minute
	return cmd
}

// versions are what the results depend on.
func (o options) versions(ctx context.Context) map[string]string {
	v := map[string]string{"proxy": strings.TrimSpace(o.proxy + " " + o.version), "machine": o.machine}
	say := func(key, program string, args ...string) {
		if out, err := exec.CommandContext(ctx, program, args...).Output(); err == nil {
			v[key] = strings.TrimSpace(string(out))
		}
	}
	say("tests", filepath.Join(o.bin, "e2e.test"), "--version")
	say("kernel", "uname", "-sr")
	kubectl := o.get("nodes", `{range .items[*]}{.metadata.name}: kubelet {.status.nodeInfo.kubeletVersion}, `+
		`{.status.nodeInfo.containerRuntimeVersion}{"\n"}{end}`)
	say("nodes", kubectl[0], kubectl[1:]...)
	return v
}

// get is the command that prints of all objects of a kind what a template of kubectl picks.
func (o options) get(kind, template string) []string {
	args := []string{o.kubectl, "--kubeconfig=" + o.kubeconfig, "get", kind, "-o", "jsonpath=" + template}
	if o.netns != "" {
		args = append([]string{"nsenter", "--net=" + o.netns}, args...)
	}
	return args
}

// schedulable is how many nodes take pods without a toleration. The tests get it as a flag, because on a provider that they do not know
// they take the number for -1 and skip what needs two.
func (o options) schedulable(ctx context.Context) (int, error) {
	args := o.get("nodes", `{range .items[*]}{.metadata.name} {.spec.unschedulable}{.spec.taints[*].effect}{"\n"}{end}`)
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).Output()
	if err != nil {
		return 0, fmt.Errorf("kubectl get nodes: %w", err)
	}
	return untainted(string(out)), nil
}

// untainted counts the lines that are a name and nothing else.
func untainted(lines string) int {
	n := 0
	for l := range strings.Lines(lines) {
		if len(strings.Fields(l)) == 1 {
			n++
		}
	}
	return n
}
