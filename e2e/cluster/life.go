// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/e2e/lab"
)

//go:embed life.yaml.tmpl
var lifeText string

// stage is something that happens in the life of a cluster while clients go on connecting.
type stage struct {
	name     string
	commands []string // of kubectl, as on the page that they are from
	// Kube-proxy is all that is replaced, by itself: what fails is printed, and is not nftproxy's.
	peer bool
}

// life goes through all stages in a running cluster that has kube-proxy, and prints what the clients saw. The error says
// in which stages a connection failed.
func life(o options) error {
	moveIn, moveOut, err := migratePage(o.repository)
	if err != nil {
		return err
	}
	text, err := render(lifeText, planNodes(o.dir.name(), o.workers)[0])
	if err != nil {
		return err
	}
	if err := o.dir.apply(text); err != nil {
		return err
	}
	for _, what := range []string{"deployment/web", "daemonset/load"} {
		if _, err := o.dir.kubectl("", "-n", "life", "rollout", "status", what, "--timeout=3m"); err != nil {
			return err
		}
	}
	if err := o.warm(); err != nil {
		return err
	}
	apply := slices.IndexFunc(moveIn, func(line string) bool { return strings.HasPrefix(line, "kubectl apply -k") })
	if apply < 0 {
		return errors.New("docs/migrate.md: nothing is applied to move in")
	}
	stages := append([]stage{
		{name: "nothing", commands: []string{"kubectl wait --for=condition=Ready nodes --all"}},
		{name: "kube-proxy patched to make room", commands: moveIn[:apply], peer: true},
		{name: "kube-proxy to nftproxy (docs/migrate.md)", commands: moveIn[apply:]},
		{name: "nftproxy to kube-proxy (docs/migrate.md)", commands: moveOut},
		{name: "kube-proxy to nftproxy again", commands: moveIn},
	}, daily()...)
	var failed []error
	fmt.Printf("%-42s %-14s %8s %7s %7s %8s %11s\n", "while", "connections to", "made", "failed", "again", "over 1 s", "slowest")
	for _, s := range stages {
		if err := o.live(s); s.peer && err != nil {
			fmt.Println("not counted:", err)
			if err := o.warm(); err != nil { // nor is what it goes on failing with
				return err
			}
		} else if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	return errors.Join(failed...)
}

// daily are the stages that need no other proxy.
func daily() []stage {
	return []stage{
		{name: "rolling update of the Deployment", commands: []string{
			"kubectl -n life rollout restart deployment web",
			"kubectl -n life rollout status deployment web --timeout=5m",
		}},
		{name: "rollout of nftproxy's DaemonSet", commands: []string{
			"kubectl -n kube-system rollout restart daemonset nftproxy",
			"kubectl -n kube-system rollout status daemonset nftproxy --timeout=5m",
		}},
		{name: "drain of a node", commands: []string{
			"kubectl drain worker-2 --ignore-daemonsets --delete-emptydir-data --timeout=5m",
			"kubectl uncordon worker-2",
		}},
		{name: "rolling update of CoreDNS", commands: []string{
			"kubectl -n kube-system rollout restart deployment coredns",
			"kubectl -n kube-system rollout status deployment coredns --timeout=5m",
		}},
	}
}

// migratePage reads the commands of docs/migrate.md: for one node, then for all, and back.
func migratePage(repository string) (in, out []string, err error) {
	text, err := os.ReadFile(filepath.Join(repository, "docs", "migrate.md"))
	if err != nil {
		return nil, nil, err
	}
	in = pageCommands(string(text), "Moving in", "Moving back")
	out = pageCommands(string(text), "Moving back", "Without DaemonSets")
	if len(in) < 5 || len(out) < 5 {
		return nil, nil, fmt.Errorf("docs/migrate.md: %d commands to move in, %d to move back", len(in), len(out))
	}
	return in, out, nil
}

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// pageCommands are the shell commands of a page between two headings.
func pageCommands(text, from, to string) (lines []string) {
	_, part, _ := strings.Cut(text, "\n## "+from+"\n")
	part, _, _ = strings.Cut(part, "\n## "+to+"\n")
	for _, block := range shellBlock.FindAllStringSubmatch(part, -1) {
		lines = append(lines, strings.Split(strings.TrimSpace(block[1]), "\n")...)
	}
	return lines
}

// live runs one stage under load and prints a line for each target.
func (o options) live(s stage) error {
	if _, err := o.collect("/reset"); err != nil {
		return err
	}
	began := time.Now()
	for _, line := range s.commands {
		if err := o.command(line); err != nil {
			return err
		}
	}
	if err := o.settled(); err != nil {
		return err
	}
	seen, err := o.collect("/")
	if err != nil {
		return err
	}
	fmt.Printf("%s, %.0f s\n", s.name, time.Since(began).Seconds())
	var failed []error
	for _, target := range slices.Sorted(maps.Keys(seen)) {
		n := seen[target]
		fmt.Printf("%-42s %-14s %8d %7d %7d %8d %8.1f ms\n", "", target, n.Made, n.Failed, n.Again, n.Over1s, n.Slowest)
		if n.Failed > 0 || n.Made == 0 {
			failed = append(failed, fmt.Errorf("%s: %d of %d failed: %s", target, n.Failed, n.Made, strings.Join(n.Failures, "; ")))
		}
	}
	return errors.Join(failed...)
}

// settled waits until no pod is on its way out, which a rollout does not wait for, and lets what was sent last have its
// time-out to fail in.
func (o options) settled() error {
	err := poll(2*time.Minute, "pods that end", nil, func() error {
		text, err := o.dir.kubectl("", "get", "pods", "-A",
			"-o", `jsonpath={range .items[?(@.metadata.deletionTimestamp)]}{.metadata.name} {end}`)
		if err == nil && strings.TrimSpace(text) != "" {
			err = fmt.Errorf("still there: %s", text)
		}
		return err
	})
	time.Sleep(5 * time.Second)
	return err
}

// warm waits until every connection of two seconds succeeds: the first proxy has then programmed all that the load needs.
func (o options) warm() error {
	return poll(2*time.Minute, "the load", nil, func() error {
		if _, err := o.collect("/reset"); err != nil {
			return err
		}
		time.Sleep(2 * time.Second)
		all, err := o.collect("/")
		for target, n := range all {
			if n.Failed > 0 {
				err = fmt.Errorf("%s: %d of %d failed: %s", target, n.Failed, n.Made, strings.Join(n.Failures, "; "))
			}
		}
		return err
	})
}

// command runs a command of a page. It is kubectl's; the page's node-1 is worker-1 here, and what it writes to a file is
// left out.
func (o options) command(line string) error {
	line, _, _ = strings.Cut(line, " > ")
	words := strings.Fields(line)
	if words[0] != "kubectl" {
		return fmt.Errorf("not a command of kubectl: %s", line)
	}
	for i, w := range words {
		if w == "node-1" {
			words[i] = "worker-1"
		}
		words[i] = strings.Replace(words[i], "manifests/", o.repository+"/manifests/", 1)
	}
	_, err := o.dir.kubectl("", words[1:]...)
	return err
}

// seen is what became of the connections to one target, from all nodes.
type seen struct {
	Made, Failed, Again, Over1s int
	Slowest                     float64 `json:"slowestMs"`
	Failures                    []string
}

// collect asks every pod of the load for its counts, and adds them up.
func (o options) collect(path string) (map[string]seen, error) {
	text, err := o.dir.kubectl("", "-n", "life", "get", "pods", "-l", "app=load",
		"-o", `jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{"\n"}{end}`)
	if err != nil {
		return nil, err
	}
	sum := map[string]seen{}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		pod, node, _ := strings.Cut(line, " ")
		got, err := o.dir.kubectl("", "get", "--raw", "/api/v1/namespaces/life/pods/"+pod+":8090/proxy"+path)
		if err != nil {
			return nil, err
		}
		var counts map[string]seen
		if err := json.Unmarshal([]byte(got), &counts); err != nil {
			return nil, fmt.Errorf("counts of %s: %w", pod, err)
		}
		for target, n := range counts {
			sum[target] = sum[target].plus(n, node)
		}
	}
	return sum, nil
}

// plus adds the counts of a node.
func (s seen) plus(n seen, node string) seen {
	s.Made += n.Made
	s.Failed += n.Failed
	s.Over1s += n.Over1s
	s.Again += n.Again
	s.Slowest = max(s.Slowest, n.Slowest)
	for _, f := range n.Failures {
		s.Failures = append(s.Failures, node+" "+f)
	}
	return s
}

// webIndex is the number of the Service web among the ClusterIPs: below the ones that the API server gives out itself
// first (KEP-3070).
const webIndex = 20

// webIP is its address.
func webIP(f lab.Family) string { return lab.ClusterIP(f, webIndex).String() }
