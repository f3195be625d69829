// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nftproxy/nftproxy/e2e/lab"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

// The forms of `nftproxy dump` beside the table: each is what it says it is, and reports what happened.
func TestDumpForms(t *testing.T) {
	c := fromManifests(t, lab.Options{})
	svc := lab.WithLoadBalancer(lab.NewService("web", 10, lab.Port(lab.TCP, 80, 8080)), 30080, 1)
	svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	slices := lab.NewSlices(svc, endpoints(c.pods()...)...)
	for _, s := range slices {
		for i := range s.Endpoints {
			zone := "zone-" + *s.Endpoints[i].NodeName
			s.Endpoints[i].Zone = &zone
		}
	}
	c.apply(svc, slices, lab.NewService("empty", 11, lab.Port(lab.UDP, 53, 8080)))
	c.serve(8080, c.pods(), lab.TCP)
	p := c.start()[0]
	d := &dumps{cluster: c, flags: flagsOf(t, p)}
	d.flows(t)
	d.pictures(t)
	d.schema(t)
	d.completion(t)
}

// dumps runs the command on node 1.
type dumps struct {
	*cluster
	flags []string // of the proxy
}

func (d *dumps) run(args ...string) string {
	d.t.Helper()
	return lab.Must(d.Node(1).Run(append([]string{lab.Must(lab.NftproxyBinary())(d.t)}, args...)...))(d.t)
}

// flows holds the counts against connections that are kept.
func (d *dumps) flows(t *testing.T) {
	want := map[string]int{} // by address
	for _, f := range lab.Families() {
		for i, to := range []string{at(lab.ClusterIP(f, 10), 80).String(), at(lab.LoadBalancerIP(f, 1), 80).String(), at(lab.NodeIP(f, 1), 30080).String()} {
			for range i + 1 {
				from := d.Client(1).Host
				if i == 0 {
					from = d.Pod(1, 1).Host
				}
				conn, err := lab.Probe{From: from, Proto: lab.TCP, To: netip.MustParseAddrPort(to)}.Open()
				if err != nil || conn.Verdict != lab.Answered {
					t.Fatalf("%s: %v %v", to, conn, err)
				}
				defer conn.Close()
				want[to]++
			}
		}
	}
	var doc inspect.Dump
	if err := json.Unmarshal([]byte(d.run("dump", "--flows", "-o", "json", "--service", "default/web")), &doc); err != nil {
		t.Fatal(err)
	}
	for _, s := range doc.ServicePorts {
		sum := 0
		for _, n := range s.Flows.Endpoints {
			sum += n
		}
		if s.Flows.Total != 6 || sum != 6 || s.Flows.Elsewhere != 0 {
			t.Errorf("%s %s: %+v, want 6 at the endpoints", s.Family, s.Name, s.Flows)
		}
		for _, f := range s.Frontends {
			if n := map[string]int{"ClusterIP": 1, "External": 2, "NodePort": 3}[f.Kind]; *f.Flows != n {
				t.Errorf("%s %s %s: %d flows, want %d", s.Family, f.Kind, f.Address, *f.Flows, n)
			}
		}
		if s.Affinity == nil || s.Affinity.Clients["cluster"] == 0 {
			t.Errorf("%s: affinity %+v, want clients", s.Family, s.Affinity)
		}
	}
	if doc.Conntrack == nil || doc.Conntrack.Scanned < 12 {
		t.Errorf("conntrack: %+v", doc.Conntrack)
	}
	if text := d.run("dump", "--flows"); !strings.Contains(text, "FLOWS") {
		t.Errorf("no column FLOWS in\n%s", text)
	}
}

// pictures are graphs of the nodes and, when there is a source, of their zones; an image is left to Graphviz.
func (d *dumps) pictures(t *testing.T) {
	for _, c := range []struct {
		flags []string
		want  []string
	}{
		{nil, []string{"this node", "other nodes", "The kernel knows neither nodes nor zones"}},
		{d.flags, []string{"node-1 (this node)", "node-2", "zone zone-node-2", "203.0.113.1:80", "10.244.2.11:8080"}},
	} {
		out := d.run(slices.Concat([]string{"dump", "-o", "dot", "--service", "default/web"}, c.flags)...)
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("dot with %v: no %q in\n%s", c.flags, want, out)
			}
		}
	}
	_, err := d.Node(1).Run(lab.Must(lab.NftproxyBinary())(t), "dump", "-o", "svg", "--service", "default/web")
	if err == nil || !strings.Contains(err.Error(), "dot -Tsvg") {
		t.Errorf("-o svg: %v", err)
	}
}

// schema holds real documents against docs/dump.schema.json.
func (d *dumps) schema(t *testing.T) {
	var s map[string]any
	if err := json.Unmarshal(lab.Must(os.ReadFile("../docs/dump.schema.json"))(t), &s); err != nil {
		t.Fatal(err)
	}
	drift, code := driftOf(t, d.Node(1), d.flags, "-o", "json")
	if code != 0 {
		t.Errorf("drift: code %d\n%s", code, drift)
	}
	fromYAML := lab.Must(yaml.YAMLToJSON([]byte(d.run("dump", "-o", "yaml", "--flows"))))(t)
	for _, text := range []string{d.run("dump", "-o", "json"), d.run("dump", "-o", "json", "--flows"), string(fromYAML), drift, d.run("explain", "tcp", "default/web", "-o", "json")} {
		var doc any
		if err := json.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatal(err)
		}
		for _, problem := range conforms(s, s, doc, "") {
			t.Errorf("%s in\n%.2000s", problem, text)
		}
	}
	if len(conforms(s, s, map[string]any{"apiVersion": "v0", "kind": "Dump"}, "")) == 0 {
		t.Error("the check finds nothing wrong with a document of another version")
	}
}

// conforms lists where a document is not as a schema says: the keywords that docs/dump.schema.json uses, and stricter in
// that it knows all properties.
func conforms(root, s map[string]any, doc any, path string) (out []string) {
	add := func(format string, args ...any) { out = append(out, path+": "+fmt.Sprintf(format, args...)) }
	if ref, ok := s["$ref"].(string); ok {
		def := root["$defs"].(map[string]any)[strings.TrimPrefix(ref, "#/$defs/")]
		return conforms(root, def.(map[string]any), doc, path)
	}
	if all, ok := s["oneOf"].([]any); ok {
		fits := 0
		for _, one := range all {
			problems := conforms(root, one.(map[string]any), doc, path)
			out = append(out, problems...)
			if len(problems) == 0 {
				fits++
			}
		}
		if fits == 1 {
			return nil
		}
		return append(out, fmt.Sprintf("%s: fits %d of %d schemas", path, fits, len(all)))
	}
	if v, ok := s["const"]; ok && v != doc {
		add("%v, not %v", doc, v)
	}
	if v, ok := s["enum"].([]any); ok && !slices.Contains(v, doc) {
		add("%v is none of %v", doc, v)
	}
	switch doc := doc.(type) {
	case map[string]any:
		properties, _ := s["properties"].(map[string]any)
		for _, name := range anys(s["required"]) {
			if _, ok := doc[name.(string)]; !ok {
				add("lacks %v", name)
			}
		}
		for name, v := range doc {
			sub, ok := properties[name].(map[string]any)
			if !ok {
				sub, ok = s["additionalProperties"].(map[string]any)
			}
			if !ok {
				add("%s is not described", name)
				continue
			}
			out = append(out, conforms(root, sub, v, path+"."+name)...)
		}
		return append(out, isType(s, "object", path)...)
	case []any:
		items, _ := s["items"].(map[string]any)
		for i, v := range doc {
			out = append(out, conforms(root, items, v, fmt.Sprintf("%s[%d]", path, i))...)
		}
		return append(out, isType(s, "array", path)...)
	case string:
		return append(out, isType(s, "string", path)...)
	case bool:
		return append(out, isType(s, "boolean", path)...)
	case float64:
		if s["type"] == "number" || s["type"] == "integer" && doc == math.Trunc(doc) {
			return out
		}
		return append(out, isType(s, "integer", path)...)
	}
	add("null")
	return out
}

func anys(v any) []any { list, _ := v.([]any); return list }

func isType(s map[string]any, is, path string) []string {
	if want, ok := s["type"]; ok && want != is {
		return []string{fmt.Sprintf("%s: %s, not %s", path, is, want)}
	}
	return nil
}

// completion lets bash complete command lines.
func (d *dumps) completion(t *testing.T) {
	bin := lab.Must(lab.NftproxyBinary())(t)
	dir := t.TempDir() // the binary under test may have another name
	if err := os.Symlink(bin, dir+"/nftproxy"); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"nftproxy du":                                "dump",
		"nftproxy dump --ser":                        "--service",
		"nftproxy dump --service default/":           "default/empty default/web",
		"nftproxy dump -o d":                         "dot",
		"nftproxy trace --service default/":          "default/empty default/web",
		"nftproxy explain tcp 10.96.0.10:80 --iif l": "lo",
		"nftproxy explain ":                          "sctp tcp udp",
		"nftproxy explain tcp 10.96.0.1":             "10.96.0.10:80",
		"nftproxy completion ":                       "bash fish powershell zsh",
		"nftproxy explain tcp 10.96.0.10:80 -o j":    "json",
	} {
		script := `PATH=` + dir + `:$PATH; . /usr/share/bash-completion/bash_completion; . <(nftproxy completion bash)
compopt() { :; }  # bash has it only while a person types
COMP_LINE="$1"; COMP_POINT=${#COMP_LINE}; read -ra COMP_WORDS <<<"$1"; case "$1" in *" ") COMP_WORDS+=("");; esac
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_TYPE=9
__start_nftproxy nftproxy "${COMP_WORDS[COMP_CWORD]}"; printf '%s\n' "${COMPREPLY[@]}" | sed 's/ .*//' | sort | xargs`
		got := strings.TrimSpace(lab.Must(d.Node(1).Run("bash", "-c", script, "bash", line))(t))
		if got != want {
			t.Errorf("%q is completed by %q, want %q", line, got, want)
		}
	}
	for _, shell := range []string{"zsh", "fish"} {
		if out := d.run("completion", shell); !strings.Contains(out, "nftproxy") {
			t.Errorf("completion %s: %.200s", shell, out)
		}
	}
}
