// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	_ "k8s.io/component-base/logs/json/register" // its flags are on the page too

	"github.com/nftproxy/nftproxy/routing"
)

var update = flag.Bool("update", false, "rewrite the generated parts of docs/")

// docsDir is where the pages are, seen from this package.
const docsDir = "../../docs"

// routingDoc is the text of the routing keys, whose types belong to package routing. Keys that the run fills in are there
// too: configured values take precedence.
var routingDoc = map[string]string{
	"serviceCIDRs":           "Ranges of ClusterIPs; empty: those of the ServiceCIDR objects.",
	"podCIDRs":               "Ranges of all pods; only checked for overlap.",
	"nodeAddrs":              "The node's addresses, one per family; empty: those of the Node object.",
	"masqueradeSubnets":      "Link-local subnets of the modes below, one per family.",
	"device":                 "Device of the service routes; empty: the device that has the node's address.",
	"mtu":                    "MTU of the service routes, 0 for none.",
	"metric":                 "Metric of all routes.",
	"wait":                   "Without effect: devices and gateways that are not there yet are always waited for.",
	"checkSysctlsOnly":       "Report a strict rp_filter that must be loose as an error instead of changing it.",
	"reach.enabled":          "Routes for host processes to the service CIDRs, for nodes without a suitable route.",
	"reach.mac":              "Link-layer address of the next hop that stands for Services; no device has it.",
	"masquerade.enabled":     "Put the node's address of the masquerade subnet, and its routes, on the device.",
	"masquerade.peerMAC":     "Makes a permanent neighbour entry for the peer; empty: the peer answers ARP and ND itself.",
	"steering.enabled":       "Host traffic to ClusterIPs with internalTrafficPolicy Local is routed to the pod gateway.",
	"steering.device":        "The pod gateway device.",
	"steering.gateways":      "Next hops behind it, as {addr, mac}, one per family.",
	"steering.mark":          "Packet mark of steered packets.",
	"steering.mask":          "Bits of the mark that are compared.",
	"steering.priority":      "Priority of the ip rule, 1 to 32765.",
	"steering.table":         "Routing table of steered packets.",
	"handOff.enabled":        "External traffic is left to an external balancer behind a device.",
	"handOff.device":         "The device behind which the other balancer is.",
	"handOff.gateways":       "Its next hops, as {addr, mac}, one per family.",
	"handOff.local":          "Hand over traffic under externalTrafficPolicy Local, by a virtual address.",
	"handOff.virtual":        "The virtual addresses, one per family; empty: the third of the masquerade subnet.",
	"handOff.cluster":        "Hand over traffic under externalTrafficPolicy Cluster, by the ClusterIP.",
	"handOff.hostClusterIPs": "Hand over what processes of the node send to ClusterIPs, untranslated.",
	"handOff.peers":          "Addresses that the balancer uses as sources towards the node, as {addr, mac}.",
}

// TestConfigurationPage holds the generated tables of docs/configuration.md.
func TestConfigurationPage(t *testing.T) {
	path := filepath.Join(docsDir, "configuration.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := replacePart(t, string(text), "own", ownTable(t))
	want = replacePart(t, want, "flags", flagTable())
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(want, string(text)); d != "" {
		t.Errorf("%s is not as the code has it; run this test with -update (-want +got):\n%s", path, d)
	}
}

// replacePart replaces what stands between the markers of a part.
func replacePart(t *testing.T, text, part, with string) string {
	t.Helper()
	re := regexp.MustCompile(`(?s)(<!-- generated: ` + part + ` -->\n).*?(<!-- end -->)`)
	if !re.MatchString(text) {
		t.Fatalf("no place for the part %q", part)
	}
	return re.ReplaceAllString(text, "${1}\n"+strings.ReplaceAll(with, "$", "$$")+"\n${2}")
}

// ownTable is the table of our own settings, by reflection over the document.
func ownTable(t *testing.T) string {
	t.Helper()
	d := newOwn()
	var c checks
	if c.own(d, nil); len(c.errs) > 0 {
		t.Fatal(c.errs)
	}
	var b strings.Builder
	b.WriteString("| key | default | meaning |\n|---|---|---|\n")
	ownRows(t, &b, reflect.ValueOf(*d), "")
	return b.String()
}

// ownRows writes a row for each key below a struct.
func ownRows(t *testing.T, b *strings.Builder, v reflect.Value, prefix string) {
	t.Helper()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, doc := jsonName(f), f.Tag.Get("doc")
		if name == "" {
			continue
		}
		key := prefix + name
		if v.Type().PkgPath() == reflect.TypeFor[routing.Config]().PkgPath() {
			doc = routingDoc[strings.TrimPrefix(key, "routing.")]
		}
		if v.Field(i).Kind() == reflect.Struct && !scalar(v.Field(i)) {
			ownRows(t, b, v.Field(i), key+".")
			continue
		}
		if doc == "" {
			t.Errorf("%s has no documentation", key)
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", key, defaultText(v.Field(i)), doc)
	}
}

// scalar reports whether a struct is written as one value.
func scalar(v reflect.Value) bool {
	switch v.Interface().(type) {
	case metav1.Duration, encoding.TextMarshaler:
		return true
	}
	return false
}

// defaultText is a default as a file would have it.
func defaultText(v reflect.Value) string {
	switch d := v.Interface().(type) {
	case metav1.Duration:
		return "`" + d.Duration.String() + "`"
	case fmt.Stringer:
		if v.IsZero() {
			return ""
		}
		return "`" + d.String() + "`"
	case uint32:
		if d > 0xffff {
			return fmt.Sprintf("`%#x`", d)
		}
	}
	if v.IsZero() && v.Kind() != reflect.Bool || v.Kind() == reflect.Slice && v.Len() == 0 {
		return ""
	}
	return fmt.Sprintf("`%v`", v.Interface())
}

// flagTable is the table of all flags.
func flagTable() string {
	var b strings.Builder
	b.WriteString("| flag | default | meaning |\n|---|---|---|\n")
	o, fs := NewOptions(), pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		usage := strings.Join(strings.Fields(f.Usage), " ")
		if f.Deprecated != "" {
			usage += " Deprecated: " + f.Deprecated + "."
		}
		def := f.DefValue
		if def != "" && def != "[]" {
			def = "`" + def + "`"
		} else {
			def = ""
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", f.Name, def, strings.ReplaceAll(usage, "|", "\\|"))
	})
	return b.String()
}

// TestRoutingDocComplete: no text is left over from a key that is gone.
func TestRoutingDocComplete(t *testing.T) {
	keys := allKeys(reflect.TypeFor[routing.Config](), "")
	for key := range routingDoc {
		if !slices.Contains(keys, key) {
			t.Errorf("text for %s, which does not exist", key)
		}
	}
}
