// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// measured is samples.json: what a report is made of.
type measured struct {
	run
	Rows []measuredRow `json:"rows"`
}

type measuredRow struct {
	Services  int `json:"services"`
	Endpoints int `json:"endpoints"`
	run
	Samples map[string]samples `json:"samples"`
}

func (r *report) raw() measured {
	m := measured{run: r.run}
	for _, row := range r.rows {
		m.Rows = append(m.Rows, measuredRow{row.services, row.endpoints, row.run, row.samples})
	}
	return m
}

// merge adds the rows of earlier runs, each with its own date. Of samples that several have of one proxy at one size, the last
// directory's count; the row is then dated as that one.
func (r *report) merge(dirs []string) error {
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "samples.json"))
		if err != nil {
			return fmt.Errorf("merge: %w", err)
		}
		var m measured
		if err := json.Unmarshal(text, &m); err != nil {
			return fmt.Errorf("merge %s: %w", dir, err)
		}
		for _, row := range m.Rows {
			r.mergeRow(row)
		}
	}
	slices.SortStableFunc(r.rows, func(a, b *row) int {
		return cmp.Or(cmp.Compare(a.endpoints, b.endpoints), cmp.Compare(a.services, b.services))
	})
	return nil
}

func (r *report) mergeRow(from measuredRow) {
	sz := size{from.Services, from.Endpoints}
	i := slices.IndexFunc(r.rows, func(row *row) bool { return row.size == sz })
	if i < 0 {
		i = len(r.rows)
		r.rows = append(r.rows, r.newRow(sz))
	}
	r.rows[i].run = from.run
	for name, s := range from.Samples {
		maps.Copy(r.rows[i].of(name), s)
	}
}
