// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"

	"github.com/spf13/cobra"
)

// errNotBuilt is what subcommands say that have no body yet.
var errNotBuilt = errors.New("not built yet")

// newDumpCommand returns `nftproxy dump`.
func newDumpCommand(out io.Writer) *cobra.Command {
	var output, service string
	cmd := &cobra.Command{
		Use: "dump", Short: "Print what the kernel is programmed with, Service by Service", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return dump(out, output, service) },
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table, json or yaml.")
	cmd.Flags().StringVar(&service, "service", "", "Only this Service, as NAMESPACE/NAME.")
	return cmd
}

// dump prints the kernel's tables.
func dump(io.Writer, string, string) error { return errNotBuilt }
