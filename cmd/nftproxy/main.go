// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

// Command nftproxy serves the Services of a Kubernetes node with nftables, in
// kube-proxy's place. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/proxier/config"
	"github.com/nftproxy/nftproxy/proxier/inspect"
)

func main() { os.Exit(report(cli.RunNoErrOutput(newCommand(os.Stdout)))) }

// exitError is an error with the code to exit with, where that means something.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// errAnswerNo is the answer of a command that found drift, a refused packet or the like; it has been printed.
var errAnswerNo = errors.New("the answer is no")

// runError is an error of the proxy itself. It goes to the log, those of other commands to the terminal.
type runError struct{ error }

func (e runError) Unwrap() error { return e.error }

// report prints how a command ended and returns the code to exit with.
func report(err error) int {
	var exit *exitError
	var run runError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errAnswerNo): // it has been printed
		return 1
	case errors.Is(err, config.ErrChanged): // planned: whatever supervises the process starts it again
		klog.InfoS("Ending, to be started again with the new configuration", "reason", err)
		logs.FlushLogs()
		return 1
	case errors.As(err, &run):
		klog.ErrorS(run.error, "command failed")
		logs.FlushLogs()
		return 1
	}
	for i, line := range strings.Split(err.Error(), "\n") {
		fmt.Fprintln(os.Stderr, map[bool]string{true: "Error:", false: "      "}[i == 0], inspect.Printable(line))
	}
	if errors.As(err, &exit) {
		return exit.code
	}
	return 1
}

const about = `nftproxy serves the Services of a Kubernetes node with nftables, in kube-proxy's
place: it takes kube-proxy's configuration file and flags, and programs the
kernel over netlink alone.

Without a subcommand it runs the proxy. Objects come from the API server
(--kubeconfig, --master or the in-cluster credentials) or from a directory of
manifests (--manifests).`

// newCommand returns the root command with its subcommands, which print to out.
func newCommand(out io.Writer) *cobra.Command {
	opts := config.NewOptions()
	var showVersion bool
	cmd := &cobra.Command{
		Use:   "nftproxy",
		Short: "Service proxy of a Kubernetes node, on nftables",
		Long:  about,
		Args:  cobra.NoArgs,
		// Without this, a mistyped flag prints all flags, and the error after 100 lines.
		SilenceUsage: true,
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
	cmd.SetFlagErrorFunc(withUsage)
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

// programVersion is the version that the Makefile sets at link time through component-base, as kubernetes_build_info has it; of
// a plain `go build` or `go install` the one that Go recorded.
func programVersion() string {
	set := version.Get().GitVersion
	if info, ok := debug.ReadBuildInfo(); ok && strings.Contains(set, "$Format") {
		return info.Main.Version
	}
	return set
}

// programCommit is the commit that the program was built from, empty if that is unknown.
func programCommit() string {
	if set := version.Get().GitCommit; set != "" && !strings.Contains(set, "$Format") {
		return set
	}
	commit, suffix := "", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				commit = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				suffix = "-dirty"
			}
		}
	}
	return commit + suffix
}

func printVersion(out io.Writer) error {
	commit := "unknown commit"
	if c := programCommit(); c != "" {
		commit = "commit " + c
	}
	_, err := fmt.Fprintf(out, "nftproxy %s (%s, %s, %s/%s)\n", programVersion(), commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// machine has what the configuration depends on besides flags.
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
	limitMemory(os.ReadFile)
	switch {
	case opts.WriteConfigTo != "":
		return writeConfig(cfg, opts.WriteConfigTo)
	case opts.Cleanup:
		return cleanup(ctx)
	}
	if opts.InitOnly {
		return prepareNode(ctx, cfg)
	}
	if err = serve(ctx, cfg, opts, flags); err == nil {
		log.Info("Ending on a signal; Services stay programmed in the kernel")
	}
	return err
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
