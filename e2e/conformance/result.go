// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// What became of a test.
const (
	passed  = "passed"
	failed  = "failed"
	skipped = "skipped"
	// missing is a test that was to run, and of which there is no word: the run ended before it.
	missing = "missing"
)

// result is what became of one test with one proxy.
type result struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// Seconds it took, in the last attempt.
	Seconds float64 `json:"seconds,omitempty"`
	// Attempts is above 1 for a test that failed and was run again.
	Attempts int `json:"attempts,omitempty"`
	// Message says why it was skipped, or how it failed.
	Message string `json:"message,omitempty"`
}

// run is a whole run with one proxy.
type run struct {
	Proxy   string    `json:"proxy"`
	Suite   string    `json:"suite"`
	Date    time.Time `json:"date"`
	Minutes float64   `json:"minutes"`
	// Versions of Kubernetes, the proxy, the kernel and the machine, as text by name.
	Versions map[string]string `json:"versions"`
	Results  []result          `json:"results"`
}

// junit is what upstream writes about a run.
type junit struct {
	Suites []struct {
		Cases []struct {
			Name    string   `xml:"name,attr"`
			Status  string   `xml:"status,attr"`
			Time    float64  `xml:"time,attr"`
			Skipped *message `xml:"skipped"`
			Failure *message `xml:"failure"`
			Error   *message `xml:"error"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

// message is an attribute, a text, or both.
type message struct {
	Attr string `xml:"message,attr"`
	Text string `xml:",chardata"`
}

func (m message) text() string {
	if t := strings.TrimSpace(m.Attr); t != "" {
		return t
	}
	return strings.TrimSpace(m.Text)
}

// readJUnit reads the results of the given tests from upstream's report; what was not in focus stands there too, as skipped.
func readJUnit(data []byte, tests []test) ([]result, error) {
	var report junit
	if err := xml.Unmarshal(data, &report); err != nil {
		return nil, fmt.Errorf("JUnit report: %w", err)
	}
	found := map[string]result{}
	for _, s := range report.Suites {
		for _, c := range s.Cases {
			r := result{Name: strings.TrimPrefix(c.Name, "[It] "), Seconds: c.Time, Attempts: 1, State: passed}
			switch {
			case c.Failure != nil:
				r.State, r.Message = failed, c.Failure.text()
			case c.Error != nil:
				r.State, r.Message = failed, c.Error.text()
			case c.Skipped != nil:
				r.State, r.Message = skipped, strings.TrimPrefix(c.Skipped.text(), "skipped - ")
			}
			found[r.Name] = r
		}
	}
	results := make([]result, 0, len(tests))
	for _, t := range tests {
		r, ok := found[t.Name]
		// Ginkgo gives the tests that it did not come to, because the run was broken off, no words.
		if !ok || r.State == skipped && (r.Message == "" || r.Message == "skipped") {
			r = result{Name: t.Name, State: missing}
		}
		results = append(results, r)
	}
	return results, nil
}

// merge puts later results in the place of earlier ones of the same test.
func merge(old, later []result) []result {
	out := slices.Clone(old)
	for _, r := range later {
		i := slices.IndexFunc(out, func(o result) bool { return o.Name == r.Name })
		if i < 0 {
			out = append(out, r)
			continue
		}
		r.Attempts += out[i].Attempts
		out[i] = r
	}
	return out
}

// in are the tests whose result is in one of the states.
func in(tests []test, results []result, states ...string) []test {
	var out []test
	for _, t := range tests {
		for _, r := range results {
			if r.Name == t.Name && slices.Contains(states, r.State) {
				out = append(out, t)
			}
		}
	}
	return out
}

// count is how many results are in a state.
func count(results []result, state string) int {
	n := 0
	for _, r := range results {
		if r.State == state {
			n++
		}
	}
	return n
}

// file is where the run of a suite with a proxy is kept.
func file(dir, suite, proxy string) string { return filepath.Join(dir, suite+"-"+proxy+".json") }

// save writes a run, and load reads it.
func (r run) save(dir string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file(dir, r.Suite, r.Proxy), append(data, '\n'), 0o644)
}

// load reads a run; a run that never was is empty, with no error.
func load(dir, suite, proxy string) (run, error) {
	r := run{Proxy: proxy, Suite: suite}
	data, err := os.ReadFile(file(dir, suite, proxy))
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s: %w", file(dir, suite, proxy), err)
	}
	return r, nil
}

// saveTests keeps the list of a suite beside its results, and loadTests reads it.
func saveTests(dir string, tests []test) error {
	data, err := json.MarshalIndent(tests, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "tests.json"), append(data, '\n'), 0o644)
}

func loadTests(dir string) ([]test, error) {
	data, err := os.ReadFile(filepath.Join(dir, "tests.json"))
	if err != nil {
		return nil, fmt.Errorf("no full run is kept: %w", err)
	}
	var tests []test
	err = json.Unmarshal(data, &tests)
	return tests, err
}
