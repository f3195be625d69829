// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package proxier is the control loop: it takes what the sources say (package kube), builds from it what each
// Service asks of the dataplane (package services), and makes the kernel's tables so (package nft).
//
//	source -> tracker -> build -> nft.Diff -> one transaction -> kernel
//
// One goroutine, that of [Proxier.Run], owns all that is known of the kernel. Events only say which Service to
// look at again. What was committed is remembered after the commit and never before; after an error that
// leaves the kernel's state open, and whenever somebody else changed our tables, they are read again.
package proxier
