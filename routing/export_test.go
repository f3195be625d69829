// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

// What the tests of package routing_test use beside the exported names.
var (
	Refusal   = refusal
	IndexName = indexName
	LinkOf    = State.link
)

const (
	TableMain = tableMain
	RPStrict  = rpStrict
	RPLoose   = rpLoose
)
