// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"net"
)

// MAC is an Ethernet address as a comparable value. The zero value means none.
type MAC [6]byte

// ParseMAC reads the usual colon, hyphen and dot forms.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil {
		return MAC{}, fmt.Errorf("MAC %q: %w", s, err)
	}
	if len(hw) != len(MAC{}) {
		return MAC{}, fmt.Errorf("MAC %q: %d bytes instead of %d", s, len(hw), len(MAC{}))
	}
	return MAC(hw), nil
}

// String returns the colon form, lower case.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// IsZero tells whether no address is given.
func (m MAC) IsZero() bool { return m == MAC{} }

// MarshalText implements encoding.TextMarshaler; none is the empty text.
func (m MAC) MarshalText() ([]byte, error) {
	if m.IsZero() {
		return nil, nil
	}
	return []byte(m.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MAC) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*m = MAC{}
		return nil
	}
	v, err := ParseMAC(string(b))
	if err != nil {
		return err
	}
	*m = v
	return nil
}
