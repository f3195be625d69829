// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// quantile is the value below which the share q of all values lies, interpolated between the two nearest; NaN of none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low, high := sorted[int(at)], sorted[int(math.Ceil(at))]
	return low + (high-low)*(at-math.Floor(at))
}

// series yields labels and value of each line of a metric in Prometheus' text format.
func series(text, name string, each func(labels string, value float64)) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name+"{")
		labels, value, found := strings.Cut(rest, "} ")
		if v, err := strconv.ParseFloat(strings.TrimSpace(value), 64); ok && found && err == nil {
			each(labels, v)
		}
	}
}

// sum adds up a metric over its labels.
func sum(text, name string) (total float64) {
	series(text, name, func(_ string, v float64) { total += v })
	return total
}

var bound = regexp.MustCompile(`,?le="([^"]*)"`)

// slowest is the bound of the highest bucket of a histogram that is not empty, over all labels.
func slowest(text, name string) (most float64) {
	reached := map[string]float64{} // observations up to the last bound, by the other labels; bounds ascend
	series(text, name+"_bucket", func(labels string, v float64) {
		m := bound.FindStringSubmatch(labels)
		if m == nil {
			return
		}
		of := bound.ReplaceAllString(labels, "")
		if le, err := strconv.ParseFloat(m[1], 64); err == nil && v > reached[of] {
			most = max(most, le)
		}
		reached[of] = v
	})
	return most
}
