// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
)

// errJSON says that a file ends or goes on where JSON does not.
var errJSON = errors.New("not JSON")

// errObject says that there is a value where there should be an object.
var errObject = errors.New("not an object")

// maxJSONDepth bounds the recursion. Services are nested some 8 levels deep.
const maxJSONDepth = 64

// jsonScanner finds the borders of JSON values without decoding or copying them. It checks what it needs to find
// them; the decoder checks the rest.
type jsonScanner struct {
	data []byte
	pos  int
}

// skipBlanks moves to the next value and tells whether there is one.
func (s *jsonScanner) skipBlanks() bool {
	for ; s.pos < len(s.data); s.pos++ {
		switch s.data[s.pos] {
		case ' ', '\t', '\r', '\n':
		default:
			return true
		}
	}
	return false
}

// expect moves past c, blanks before it included.
func (s *jsonScanner) expect(c byte) bool {
	if !s.skipBlanks() || s.data[s.pos] != c {
		return false
	}
	s.pos++
	return true
}

func (s *jsonScanner) fail() error { return fmt.Errorf("byte %d: %w", s.pos, errJSON) }

// value moves past one value and returns it as a part of the data.
func (s *jsonScanner) value(depth int) ([]byte, error) {
	if !s.skipBlanks() || depth > maxJSONDepth {
		return nil, s.fail()
	}
	start := s.pos
	var err error
	switch s.data[start] {
	case '{':
		err = s.members(func([]byte) error {
			_, err := s.value(depth + 1)
			return err
		})
	case '[':
		err = s.elements(func() error {
			_, err := s.value(depth + 1)
			return err
		})
	case '"':
		err = s.string()
	default:
		err = s.literal()
	}
	return s.data[start:s.pos], err
}

// string moves past a string.
func (s *jsonScanner) string() error {
	for s.pos++; s.pos < len(s.data); s.pos++ {
		switch s.data[s.pos] {
		case '\\':
			s.pos++
		case '"':
			s.pos++
			return nil
		}
	}
	s.pos = len(s.data)
	return s.fail()
}

// literal moves past a number, true, false or null.
func (s *jsonScanner) literal() error {
	start := s.pos
	for ; s.pos < len(s.data); s.pos++ {
		switch c := s.data[s.pos]; {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', c == 'E', c == '-', c == '+', c == '.':
			continue
		}
		break
	}
	if s.pos == start {
		return s.fail()
	}
	return nil
}

// members moves past an object; member gets each key with its quotes and must move past the value.
func (s *jsonScanner) members(member func(key []byte) error) error {
	return s.list('{', '}', func() error {
		if !s.skipBlanks() || s.data[s.pos] != '"' {
			return s.fail()
		}
		start := s.pos
		if err := s.string(); err != nil {
			return err
		}
		key := s.data[start:s.pos]
		if !s.expect(':') {
			return s.fail()
		}
		return member(key)
	})
}

// elements moves past an array; element must move past one element.
func (s *jsonScanner) elements(element func() error) error { return s.list('[', ']', element) }

func (s *jsonScanner) list(open, end byte, item func() error) error {
	if !s.expect(open) {
		return s.fail()
	}
	if s.expect(end) {
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if s.expect(end) {
			return nil
		}
		if !s.expect(',') {
			return s.fail()
		}
	}
}

// head is what the first level of an object says.
type head struct {
	apiVersion, kind string
	items            []headed // of a list
}

// headed is an object as text with its head. broken says why it has none.
type headed struct {
	text   []byte
	head   head
	broken error
}

// readHead reads the first level of the one JSON object that data is, and of the items if it is a list.
func readHead(data []byte) (head, error) {
	s := jsonScanner{data: data}
	h, err := s.head(0)
	if err == nil && s.skipBlanks() {
		err = s.fail()
	}
	return h, err
}

// head moves past an object and reads its first level.
func (s *jsonScanner) head(depth int) (h head, err error) {
	err = s.members(func(key []byte) error {
		if string(key) == `"items"` && depth == 0 && s.skipBlanks() && s.data[s.pos] == '[' {
			return s.elements(func() error {
				item, err := s.headed()
				h.items = append(h.items, item)
				return err
			})
		}
		value, err := s.value(depth)
		if err != nil || len(value) < 2 || value[0] != '"' {
			return err
		}
		switch string(key) {
		case `"apiVersion"`:
			h.apiVersion = string(value[1 : len(value)-1])
		case `"kind"`:
			h.kind = string(value[1 : len(value)-1])
		}
		return nil
	})
	return h, err
}

// headed moves past a value. Only an error that leaves no place to go on from is returned.
func (s *jsonScanner) headed() (item headed, err error) {
	if s.skipBlanks() && s.data[s.pos] != '{' {
		item.text, err = s.value(1)
		item.broken = fmt.Errorf("%.20q: %w", item.text, errObject)
		return item, err
	}
	start := s.pos
	item.head, err = s.head(1)
	item.text = s.data[start:s.pos]
	return item, err
}
