// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

// Internals for the tests of package nft_test, which import nft/kernel.

var (
	WantedElements = wantedElements
	AppendClassID  = appendClassID
	AppendEndpoint = appendEndpoint
	AppendProto    = appendProto
	AppendPort     = appendPort
	AppendFrontend = appendFrontend
	AddrKey        = addrKey
	AllPolicies    = policies
)
