// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package services says what a Service means: which addresses it takes, which endpoints its packets may go to from this
// node, and who may send them. It turns the values of package kube into those of package nft.
//
// [Build] is pure and looks at one Service only; its cost follows that Service's ports and endpoints. What depends
// on other Services is who gets an address and port that several of them claim: [Index] decides that.
package services
