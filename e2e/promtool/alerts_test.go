// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package promtool holds the alert rules to what they promise, by promtool's own rule tests (make alerts). It is a module of
// its own: promtool takes 5 minutes of processor time to build, once.
package promtool

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// rules are the groups of the PrometheusRule, as Prometheus reads them: what is below spec.
func rules(t *testing.T) string {
	text, err := os.ReadFile(filepath.Join("..", "..", "manifests", "components", "monitoring", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, spec, ok := strings.Cut(string(text), "\nspec:\n")
	if !ok {
		t.Fatal("rules.yaml has no spec")
	}
	var out strings.Builder
	for line := range strings.Lines(spec) {
		out.WriteString(strings.TrimPrefix(line, "  "))
	}
	return out.String()
}

// TestAlerts runs promtool on the rules and their tests.
func TestAlerts(t *testing.T) {
	dir := t.TempDir()
	tests, err := os.ReadFile("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"rules.yaml": rules(t), "alerts.yaml": string(tests)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"check", "rules", filepath.Join(dir, "rules.yaml")}, {"test", "rules", filepath.Join(dir, "alerts.yaml")}} {
		cmd := exec.Command("go", append([]string{"tool", "promtool"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args[:2], err, out)
		}
	}
	for _, match := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(rules(t), -1) {
		if n := strings.Count(string(tests), match[1]); n < 2 {
			t.Errorf("%s is named %d times in alerts.yaml, want at least that it fires and that it does not", match[1], n)
		}
	}
}
