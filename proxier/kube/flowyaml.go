// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"strings"
)

// flowReader turns one line of YAML, a scalar or a flow collection, into JSON on the terms of [fastJSON].
type flowReader struct {
	text []byte // not read yet
	flow int    // how many collections are open: brackets and commas end a scalar inside one
	bad  bool
	out  []byte
}

func (f *flowReader) blanks() {
	trimmed := bytes.TrimLeft(f.text, " ")
	if len(trimmed) > 0 && trimmed[0] == '#' && len(trimmed) == len(f.text) && len(f.out) > 0 {
		f.bad = true // a comment needs a blank before it
	}
	f.text = trimmed
}

// value reads what f.text begins with.
func (f *flowReader) value(depth int) {
	switch {
	case f.bad || len(f.text) == 0 || depth > maxYAMLDepth:
		f.bad = true
	case f.text[0] == '[':
		f.collection(']', func() { f.value(depth + 1) })
	case f.text[0] == '{':
		f.collection('}', func() { f.pair(depth + 1) })
	default:
		f.scalar()
	}
}

// collection reads items between brackets.
func (f *flowReader) collection(end byte, item func()) {
	f.out = append(f.out, f.text[0])
	f.text = f.text[1:]
	f.flow++
	for first := true; !f.bad; first = false {
		f.text = bytes.TrimLeft(f.text, " ")
		switch {
		case len(f.text) == 0:
			f.bad = true // goes on in the next line
		case f.text[0] == end && first:
			f.close(end)
			return
		}
		if f.bad {
			return
		}
		item()
		f.text = bytes.TrimLeft(f.text, " ")
		switch {
		case f.bad || len(f.text) == 0:
			f.bad = true
		case f.text[0] == ',':
			f.out = append(f.out, ',')
			f.text = f.text[1:]
		case f.text[0] == end:
			f.close(end)
			return
		default:
			f.bad = true
		}
	}
}

func (f *flowReader) close(end byte) {
	f.out = append(f.out, end)
	f.text = f.text[1:]
	f.flow--
}

// pair reads "key: value" inside braces.
func (f *flowReader) pair(depth int) {
	n := keyEnd(f.text)
	if n == 0 || n+1 == len(f.text) {
		f.bad = true
		return
	}
	k := flowReader{text: f.text[:n], out: f.out}
	k.scalar()
	if f.bad = k.bad || len(k.text) > 0 || k.out[len(k.out)-1] != '"'; f.bad {
		return
	}
	f.out = append(k.out, ':')
	f.text = bytes.TrimLeft(f.text[n+1:], " ")
	f.value(depth)
}

// scalar reads a quoted or plain scalar.
func (f *flowReader) scalar() {
	switch f.text[0] {
	case '"':
		f.double()
	case '\'':
		f.single()
	default:
		f.plain()
	}
}

// double reads a scalar in double quotes, if its escapes are those that JSON has too.
func (f *flowReader) double() {
	for i := 1; i < len(f.text); i++ {
		switch f.text[i] {
		case '\\':
			i++
			if i == len(f.text) || strings.IndexByte(`"\nt`, f.text[i]) < 0 {
				f.bad = true
				return
			}
		case '"':
			f.out = append(f.out, f.text[:i+1]...)
			f.text = f.text[i+1:]
			return
		}
	}
	f.bad = true
}

// single reads a scalar in single quotes, in which nothing is doubled.
func (f *flowReader) single() {
	i := 1 + bytes.IndexByte(f.text[1:], '\'')
	if i == 0 || i+1 < len(f.text) && f.text[i+1] == '\'' {
		f.bad = true
		return
	}
	f.string(f.text[1:i])
	f.text = f.text[i+1:]
}

// string writes a JSON string of printable ASCII.
func (f *flowReader) string(text []byte) {
	f.out = append(f.out, '"')
	for _, c := range text {
		if c == '"' || c == '\\' {
			f.out = append(f.out, '\\')
		}
		f.out = append(f.out, c)
	}
	f.out = append(f.out, '"')
}

// plain reads a scalar without quotes and writes it with the type that it has in YAML 1.1.
func (f *flowReader) plain() {
	n := f.plainEnd()
	if f.bad = f.bad || n == 0; f.bad {
		return
	}
	text := f.text[:n]
	f.text = f.text[n:]
	switch kind := plainKind(text); kind {
	case plainString:
		f.string(text)
	case plainLiteral:
		f.out = append(f.out, text...)
	case plainNull:
		f.out = append(f.out, "null"...)
	default:
		f.bad = true
	}
}

// plainEnd returns how long the plain scalar at the beginning of the text is, trailing blanks left out.
func (f *flowReader) plainEnd() int {
	if strings.IndexByte("!&*|>@`%?:-,[]{}#\"'=<", f.text[0]) >= 0 {
		f.bad = true // an indicator, or a scalar that begins like one
		return 0
	}
	n := len(f.text)
	for i, c := range f.text {
		if f.flow > 0 && strings.IndexByte(",]}[{", c) >= 0 || c == '#' && f.text[i-1] == ' ' {
			n = i
			break
		}
		if c == ':' && (i+1 == len(f.text) || strings.IndexByte(" ,[]{}", f.text[i+1]) >= 0) || c == '?' && f.flow > 0 {
			f.bad = true // a key, where none can be; or what the complete parser takes for one
			return 0
		}
	}
	return len(bytes.TrimRight(f.text[:n], " "))
}

// The kinds of plain scalars.
const (
	plainUnsure  = iota
	plainString  // text
	plainLiteral // the same in JSON: true, false, null, decimal integers
	plainNull    // ~
)

// plainKind says what a plain scalar is in YAML 1.1 as sigs.k8s.io/yaml reads it: what begins like a number, a sign, a
// dot or one of the words for true, false and null may be one; everything else is text.
func plainKind(text []byte) int {
	switch c := text[0]; {
	case c == '~' && len(text) == 1:
		return plainNull
	case '0' <= c && c <= '9':
		return numberKind(text)
	case strings.IndexByte("+-.~", c) >= 0:
		return plainUnsure
	}
	switch string(text) {
	case "true", "false", "null":
		return plainLiteral
	}
	switch strings.ToLower(string(text)) {
	case "y", "n", "yes", "no", "on", "off", "true", "false", "null":
		return plainUnsure
	}
	return plainString
}

// numberKind says what a plain scalar is that begins with a digit.
func numberKind(text []byte) int {
	digits, dots, colons := 0, 0, 0
	for _, c := range text {
		switch {
		case '0' <= c && c <= '9':
			digits++
		case 'a' <= c && c <= 'f':
		case c == '.':
			dots++
		case c == ':':
			colons++
		case c == '/':
		default:
			return plainUnsure
		}
	}
	switch {
	case dots > 1, colons > 1: // an address or a range; a number has one dot at most and no colon
		return plainString
	case digits == len(text) && digits < 18 && (text[0] != '0' || digits == 1):
		return plainLiteral
	}
	return plainUnsure
}
