// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Package kube says what the proxy needs to know of Kubernetes objects, and where it learns it.
//
// [Service], [EndpointSlice], [Node] and [ServiceCIDR] are plain, compact values: they hold no API object, so that
// a node of a large cluster fits into a few MiB. FromService and its siblings make them from API objects; a field
// that cannot be used becomes a [FieldError] and is left out, and the rest of the object is used.
//
// Two sources deliver them to a [Sink]: [API] watches an API server, [Manifests] a directory of files. Behind the
// Sink nobody can tell which of the two is at work.
package kube
