// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// A long comment is cut between characters and stays UTF-8.
func TestCommentIsCutBetweenCharacters(t *testing.T) {
	for i := range 4 {
		long := strings.Repeat("x", i) + strings.Repeat("€", maxComment)
		if c := cutComment(long); !utf8.ValidString(c) || len(c) > maxComment {
			t.Errorf("%q, %d bytes", c, len(c))
		}
	}
}
