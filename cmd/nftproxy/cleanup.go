// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"
)

// newCleanupCommand returns `nftproxy cleanup`, the same as --cleanup.
func newCleanupCommand(io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "cleanup", Short: "Remove everything that nftproxy and kube-proxy made on this node", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cleanup(cmd.Context()) },
	}
}

// errNotBuilt is what a subcommand says that has no body yet.
var errNotBuilt = errors.New("not built yet")

// cleanup removes what was made and nothing else.
func cleanup(context.Context) error { return errNotBuilt }
