// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// REST returns the client configuration: in-cluster credentials when neither
// kubeconfig nor master was given, as kube-proxy does. userAgent names the
// program to the API server ("nftproxy/v0.1.0"). Reads files; opens no
// connection.
func (c Client) REST(userAgent string) (*rest.Config, error) {
	cfg, err := c.load()
	if err != nil {
		return nil, fmt.Errorf("client configuration: %w", err)
	}
	cfg.AcceptContentTypes = c.AcceptContentTypes
	cfg.ContentType = c.ContentType
	cfg.QPS = c.QPS
	cfg.Burst = c.Burst
	cfg.UserAgent = userAgent
	return cfg, nil
}

func (c Client) load() (*rest.Config, error) {
	if c.Kubeconfig == "" && c.Master == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig},
		&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: c.Master}},
	).ClientConfig()
}
