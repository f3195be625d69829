// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/proxier/config"
)

const about = `nftproxy serves the Services of a Kubernetes node with nftables, in kube-proxy's
place: it takes kube-proxy's configuration file and flags, and programs the
kernel over netlink alone.

Without a subcommand it runs the proxy. Objects come from the API server
(--kubeconfig, --master or the in-cluster credentials) or from a directory of
manifests (--manifests).`

// newCommand returns the root command with its subcommands. What subcommands
// print goes to out.
func newCommand(out io.Writer) *cobra.Command {
	opts := config.NewOptions()
	var showVersion bool
	cmd := &cobra.Command{
		Use:   "nftproxy",
		Short: "Service proxy of a Kubernetes node, on nftables",
		Long:  about,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if showVersion {
				return printVersion(out)
			}
			if err := run(cmd.Context(), opts, cmd.Flags()); err != nil {
				return runError{err}
			}
			return nil
		},
	}
	opts.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&showVersion, "version", false, "Print the version and exit.")
	cmd.AddCommand(newVersionCommand(out), newCleanupCommand(out), newDumpCommand(out), newExplainCommand(out), newTraceCommand(out))
	return cmd
}

func newVersionCommand(out io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return printVersion(out) },
	}
}

// programVersion is set at link time through component-base, so that
// kubernetes_build_info and --version agree.
func programVersion() string { return version.Get().GitVersion }

func printVersion(out io.Writer) error {
	_, err := fmt.Fprintf(out, "nftproxy %s (%s, %s/%s)\n", programVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// machine is what the configuration depends on beside flags.
func machine() config.Machine { return config.Machine{Hostname: os.Hostname, ReadFile: os.ReadFile} }

// run loads the configuration and does what the flags ask for.
func run(ctx context.Context, opts *config.Options, flags *pflag.FlagSet) error {
	cfg, err := opts.Load(flags, machine())
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := logsapi.ValidateAndApplyAsField(&cfg.Logging, cfg.Gates, field.NewPath("logging")); err != nil {
		return fmt.Errorf("initialize logging: %w", err)
	}
	cfg.Gates.Apply()
	cliflag.PrintFlags(flags)
	log := klog.Background()
	for _, w := range cfg.Warnings {
		log.Info("Configuration: " + w)
	}
	// SIGTERM and SIGINT end the run and leave the rules where they are.
	ctx, stop := signal.NotifyContext(klog.NewContext(ctx, log), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	switch {
	case opts.WriteConfigTo != "":
		return writeConfig(cfg, opts.WriteConfigTo)
	case opts.Cleanup:
		return cleanup(ctx)
	}
	if err := prepareNode(ctx, cfg); err != nil || opts.InitOnly {
		return err
	}
	return serve(ctx, cfg, opts, flags)
}

// writeConfig writes the defaulted configuration to a file.
func writeConfig(cfg *config.Config, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := cfg.Write(f); err != nil {
		_ = f.Close()
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	klog.InfoS("Wrote configuration", "file", path)
	return nil
}
