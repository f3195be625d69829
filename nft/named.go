// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Named shows those elements of a family's table that carry the name of a Service port as their comment: one per frontend,
// so that it costs a fraction of Read. They are of no particular generation. Without a table there are none.
func (k *Kernel) Named(f Family, show func(Element)) error {
	for _, set := range []SetID{Services, NodePorts, RejectServices, DropServices, RejectNodePorts, DropNodePorts} {
		err := k.elements(f, set.String(), func(e *rawElement) {
			if e.comment != "" {
				show(Element{Set: set, Key: string(e.key), Data: string(e.data), Comment: e.comment})
			}
		})
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("names in %s of table %s %s: %w", set, f, TableName, err)
		}
	}
	return nil
}
