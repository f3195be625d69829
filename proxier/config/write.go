// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// Write writes both documents with all defaults, as --write-config-to does. The
// KubeProxyConfiguration comes first, because kube-proxy reads no further.
func (c *Config) Write(w io.Writer) error {
	var out bytes.Buffer
	for i, doc := range []any{c.External, c.OwnExternal} {
		text, err := yaml.Marshal(doc)
		if err != nil {
			return fmt.Errorf("encode configuration: %w", err)
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(text)
	}
	_, err := w.Write(out.Bytes())
	return err
}
