// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

const listing = `The following spec names can be used with 'ginkgo run --focus/skip':
    ../e2e/apps/cronjob.go:73: [sig-apps] CronJob should schedule
    ../e2e/network/networking.go:88: [sig-network] Networking should provide Internet connection for containers [Feature:Networking-IPv4]
    ../e2e/network/netpol.go:88: [sig-network] Netpol should deny
    ../e2e/network/networking.go:360: [sig-network] Networking Granular Checks: Services should update nodePort: http [Slow]
    ../e2e/network/networking.go:635: [sig-network] Networking should allow creating a Pod with an SCTP HostPort [LinuxOnly] [Serial]
    ../e2e/network/service.go:780: [sig-network] Services should serve a basic endpoint from pods [Conformance]
`

// sorted is the listing, sorted out.
func sorted(t *testing.T) []test {
	t.Helper()
	names, err := listed(strings.NewReader(listing))
	if err != nil {
		t.Fatal(err)
	}
	if len(names) != 6 {
		t.Fatalf("read %d names: %q", len(names), names)
	}
	return sortOut(names, nil)
}

func TestSelection(t *testing.T) {
	tests := sorted(t)
	if len(tests) != 4 {
		t.Fatalf("%d tests are about Services: %v", len(tests), tests)
	}
	beside, alone := parts(tests)
	if len(beside) != 2 || len(alone) != 1 || !strings.Contains(alone[0].Name, "SCTP HostPort") {
		t.Errorf("beside %v, alone %v", beside, alone)
	}
	if tests[0].Skip != "needs the Internet" {
		t.Errorf("left out because of %q", tests[0].Skip)
	}
	re := regexp.MustCompile(focus(beside))
	for _, u := range tests {
		if got, want := re.MatchString("Kubernetes e2e suite "+u.Name), slices.Contains(beside, u); got != want {
			t.Errorf("focus matches %s: %v", u.Name, got)
		}
	}
	if only := sortOut([]string{tests[3].Name, tests[1].Name}, smoke); len(only) != 1 || only[0].Name != tests[3].Name {
		t.Errorf("smoke is %v", only)
	}
	if here := sortOut([]string{tests[3].Name, "[sig-network] Networking sctp [Feature:SCTPConnectivity]"}, nil, noSCTP); here[0].Skip != "" ||
		here[1].Skip != noSCTP.reason {
		t.Errorf("without SCTP: %v", here)
	}
	if _, err := listed(strings.NewReader("nothing\n")); err == nil {
		t.Error("an empty list was taken")
	}
}

// report is shaped as e2e.test --report-dir writes it: what was not in focus is there as skipped, without words.
const report = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="5"><testsuite name="Kubernetes e2e suite" package="/tmp" tests="5">
<testcase name="[SynchronizedBeforeSuite]" classname="Kubernetes e2e suite" status="passed" time="0.1"></testcase>
<testcase name="[It] a" classname="Kubernetes e2e suite" status="passed" time="2.5"></testcase>
<testcase name="[It] b" classname="Kubernetes e2e suite" status="skipped" time="0.5"><skipped message="skipped - Test requires &gt;= 5 nodes"></skipped></testcase>
<testcase name="[It] c" classname="Kubernetes e2e suite" status="failed" time="7"><failure type="failed">no answer | ever&#xA;more</failure><system-err>log</system-err></testcase>
<testcase name="[It] d" classname="Kubernetes e2e suite" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
</testsuite></testsuites>`

func TestReport(t *testing.T) {
	tests := []test{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}, {Name: "e"}}
	got, err := readJUnit([]byte(report), tests)
	if err != nil {
		t.Fatal(err)
	}
	want := []result{
		{Name: "a", State: passed, Seconds: 2.5, Attempts: 1},
		{Name: "b", State: skipped, Seconds: 0.5, Attempts: 1, Message: "Test requires >= 5 nodes"},
		{Name: "c", State: failed, Seconds: 7, Attempts: 1, Message: "no answer | ever\nmore"},
		{Name: "d", State: missing},
		{Name: "e", State: missing},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if rest := unpassed(tests, got); len(rest) != 4 || rest[0].Name != "b" {
		t.Errorf("not passed: %v", rest)
	}
	if n := untainted("a \nb NoSchedule\n\nc true\nd \n"); n != 2 {
		t.Errorf("%d nodes take pods, not 2", n)
	}
	if bad := in(tests, got, failed, missing); len(bad) != 3 {
		t.Errorf("to run again: %v", bad)
	}
	again := merge(got, []result{{Name: "c", State: passed, Seconds: 1, Attempts: 1}})
	if again[2].Attempts != 2 || again[2].State != passed || len(again) != 5 || retried(again) != 1 {
		t.Errorf("after the second attempt: %+v", again)
	}
	if r := without(again, []result{{Name: "c"}}, 1); len(r) != 4 {
		t.Errorf("an earlier run's result stays: %+v", r)
	}
	if _, err := readJUnit([]byte("<testsuites><test"), tests); err == nil {
		t.Error("half a report was taken")
	}
}

func TestTable(t *testing.T) {
	tests := sorted(t)
	ours, peer := run{Proxy: "nftproxy"}, run{Proxy: "kube-proxy"}
	ours.Results = []result{
		{Name: tests[1].Name, State: passed, Seconds: 12, Attempts: 1},
		{Name: tests[2].Name, State: passed, Seconds: 3, Attempts: 2},
	}
	peer.Results = []result{
		{Name: tests[1].Name, State: failed, Message: "a | b\nc", Attempts: 2},
		{Name: tests[2].Name, State: skipped, Message: "no SCTP"},
	}
	dir := t.TempDir()
	for _, r := range []run{ours, peer} {
		r.Suite = suiteFull
		if err := r.save(dir); err != nil {
			t.Fatal(err)
		}
		back, err := load(dir, suiteFull, r.Proxy)
		if err != nil || !slices.Equal(back.Results, r.Results) {
			t.Fatalf("read back %+v, %v", back, err)
		}
	}
	if got := of(tests, []result{{Name: tests[0].Name}, {Name: tests[1].Name}, {Name: "gone"}}); len(got) != 1 || got[0].Name != tests[1].Name {
		t.Errorf("results of tests that are not left out: %v", got)
	}
	text := describe(ours, peer) + render(tests, ours, peer)
	for _, want := range []string{
		"| passed | 2 | 0 |\n",
		"| of these at the second attempt | 1 | 0 |\n",
		"## Networking\n\n| test | nftproxy | kube-proxy |\n",
		"| Granular Checks: Services should update nodePort: http [Slow] | passed (12 s) | **failed** a \\| b |\n",
		"| should allow creating a Pod with an SCTP HostPort [LinuxOnly] [Serial] | passed at attempt 2 (3 s) | skipped: no SCTP |\n\n## Services",
		"| should serve a basic endpoint from pods [Conformance] | not run | not run |\n\n## Left out",
		"| Networking should provide Internet connection for containers [Feature:Networking-IPv4] | needs the Internet |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}
