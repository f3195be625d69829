// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of our own settings.
const (
	// maxAffinityMapSize keeps one map below some 2 GB of kernel memory (about
	// 128 bytes per element).
	maxAffinityMapSize = 1 << 24
	maxBatchWindow     = time.Second
	// maxElements is what some 100 GB of kernel memory hold: a bound beyond it is
	// a mistake.
	maxElements = 1_000_000_000
)

// parseOwn validates the document and returns it in parsed form.
func parseOwn(d *NFTProxyConfiguration) (Own, field.ErrorList) {
	root := field.NewPath(OwnKind)
	errs := between(d.AffinityMapSize, 1, maxAffinityMapSize, root.Child("affinityMapSize"))
	errs = append(errs, between(d.MaxServiceElements, 0, maxElements, root.Child("maxServiceElements"))...)
	errs = append(errs, between(d.MaxElements, 0, maxElements, root.Child("maxElements"))...)
	if w := d.BatchWindow.Duration; w < 0 || w > maxBatchWindow {
		errs = append(errs, field.Invalid(root.Child("batchWindow"), w.String(), "must be from 0s to 1s"))
	}
	if d.StaleFlows.Reset && !d.StaleFlows.TCP {
		errs = append(errs, field.Invalid(root.Child("staleFlows", "reset"), true, "needs staleFlows.tcp"))
	}
	routes, err := d.Routing.Normalize()
	if err != nil {
		errs = append(errs, field.Invalid(root.Child("routing"), field.OmitValueType{}, err.Error()))
	}
	return Own{
		StrictSourceRanges: d.StrictSourceRanges,
		AffinityMapSize:    d.AffinityMapSize,
		MaxServiceElements: d.MaxServiceElements,
		MaxElements:        d.MaxElements,
		CountConnections:   d.CountConnections,
		BatchWindow:        d.BatchWindow.Duration,
		StaleFlows:         StaleFlows(d.StaleFlows),
		Routing:            routes,
	}, errs
}
