// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// KubeProxyServes tells whether kube-proxy has written rules of Services in a family, in nftables mode or, with
// iptables-nft, in iptables mode. It writes all of them in one transaction, so that one stands for all.
func (k *Kernel) KubeProxyServes(f Family) (serves bool, err error) {
	look := func(table string, isService func(chain string) bool) {
		if err == nil {
			err = k.eachChain(f, table, func(chain string) { serves = serves || isService(chain) })
		}
	}
	// Chains of Services are named service-HASH-namespace/name/protocol/port, and no other has a slash.
	look(kubeProxyTable, func(chain string) bool { return strings.Contains(chain, "/") })
	look("nat", func(chain string) bool { return strings.HasPrefix(chain, "KUBE-SVC-") })
	return serves, err
}

const kubeProxyTable = "kube-proxy"

// eachChain calls visit with the name of each chain of a table, of some more than once when others commit meanwhile. That
// there is no such table is no error.
func (k *Kernel) eachChain(f Family, table string, visit func(name string)) error {
	err := k.listChains(f, table, visit)
	for tries := 1; tries < readAttempts && errors.Is(err, unix.EINTR); tries++ {
		err = k.listChains(f, table, visit)
	}
	return err
}

func (k *Kernel) listChains(f Family, table string, visit func(name string)) error {
	w := nfgenmsg(f)
	w.name(unix.NFTA_CHAIN_TABLE, table)
	var in, name string
	err := k.request(unix.NFT_MSG_GETCHAIN, netlink.Dump, w, func(a *netlink.AttributeDecoder) {
		switch a.Type() {
		case unix.NFTA_CHAIN_TABLE:
			in = a.String()
		case unix.NFTA_CHAIN_NAME:
			name = a.String()
		}
	}, func() {
		if in == table { // a dump need not be limited to the table asked for
			visit(name)
		}
	})
	if err != nil {
		return fmt.Errorf("chains of table %s %s: %w", f, table, err)
	}
	return nil
}
