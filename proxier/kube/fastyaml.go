// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"strings"
)

// fastJSON turns a YAML document into JSON if it is of the plain kind that people and programs write for Kubernetes,
// and says false, at the first thing that is not, for a complete parser to look at it: anchors, tags, block and
// multi-line scalars, anything but printable ASCII, and scalars whose type takes more than a look (yes, 0o17, 1.5).
// What it does read means the same as to sigs.k8s.io/yaml, which takes 30 times as long: 10,000 Services and their
// slices are 2.4 s with that and 0.1 s with this.
//
// The JSON is appended to out. Duplicate keys stay duplicates.
func fastJSON(out, doc []byte) ([]byte, bool) {
	y := yamlReader{rest: doc, out: out}
	y.next()
	if y.bad || y.done {
		return out, false
	}
	y.node(y.indent, 0)
	return y.out, !y.bad && y.done
}

// maxYAMLKey is how long a key may be for this reader; YAML itself has a limit of 1024.
const maxYAMLKey = 512

// maxYAMLDepth bounds the recursion. Services are nested some 8 levels deep.
const maxYAMLDepth = 32

// yamlReader reads a document line by line. Once it is bad nothing it says counts.
type yamlReader struct {
	rest []byte // after the current line
	// line is the rest of the current line from its first character that has not been read yet, without trailing blanks
	// and comment; indent is the column of that character. "- a: 1" counts as the line "a: 1" with an indent of 2
	// once the dash has been read.
	line   []byte
	indent int
	done   bool // there is no current line
	bad    bool
	out    []byte
}

// next makes the next line that is neither empty nor a comment the current one.
func (y *yamlReader) next() {
	for len(y.rest) > 0 && !y.bad {
		line, rest, _ := bytes.Cut(y.rest, []byte("\n"))
		y.rest = rest
		for _, c := range line {
			y.bad = y.bad || c < ' ' || c > '~'
		}
		text := bytes.TrimLeft(line, " ")
		if len(text) == 0 || text[0] == '#' {
			continue
		}
		y.line, y.indent = text, len(line)-len(text)
		y.bad = y.bad || y.indent == 0 && text[0] == '%' // a directive
		return
	}
	y.done = true
}

// node reads the value that begins at the current line, whose indent is the given one.
func (y *yamlReader) node(indent, depth int) {
	switch {
	case y.bad, depth > maxYAMLDepth:
		y.bad = true
	case isDash(y.line):
		y.sequence(indent, depth)
	default:
		y.mapping(indent, depth)
	}
}

func isDash(line []byte) bool { return line[0] == '-' && (len(line) == 1 || line[1] == ' ') }

// sequence reads the items that begin with a dash at the given indent.
func (y *yamlReader) sequence(indent, depth int) {
	sep := byte('[')
	for !y.bad && !y.done && y.indent == indent && isDash(y.line) {
		y.out = append(y.out, sep)
		sep = ','
		text := bytes.TrimLeft(y.line[1:], " ")
		y.indent += len(y.line) - len(text)
		y.line = text
		switch {
		case len(text) == 0 || text[0] == '#':
			y.next()
			y.nested(indent+1, depth)
		case isDash(text) || keyEnd(text) > 0:
			y.node(y.indent, depth+1)
		default:
			y.value(text, indent, depth)
		}
	}
	y.out = append(y.out, ']')
	y.end(indent)
}

// mapping reads the keys that begin at the given indent.
func (y *yamlReader) mapping(indent, depth int) {
	sep := byte('{')
	for !y.bad && !y.done && y.indent == indent && !isDash(y.line) {
		n := keyEnd(y.line)
		if n <= 0 {
			y.bad = true
			return
		}
		y.out = append(y.out, sep)
		sep = ','
		y.key(y.line[:n])
		y.out = append(y.out, ':')
		text := bytes.TrimLeft(y.line[n+1:], " ")
		if len(text) > 0 && text[0] != '#' {
			y.value(text, indent, depth)
			continue
		}
		y.next()
		if !y.bad && !y.done && y.indent == indent && isDash(y.line) { // a list needs no indent under its key
			y.sequence(indent, depth+1)
			continue
		}
		y.nested(indent+1, depth)
	}
	y.out = append(y.out, '}')
	y.end(indent)
}

// nested reads the value below a key or dash: what is indented by at least that much, or nothing, which is null.
func (y *yamlReader) nested(least, depth int) {
	switch {
	case y.bad:
	case y.done || y.indent < least:
		y.out = append(y.out, "null"...)
	case !isDash(y.line) && keyEnd(y.line) <= 0:
		y.bad = true // a scalar on a line of its own
	default:
		y.node(y.indent, depth+1)
	}
}

// end checks that what follows a block at the given indent is further out. A list may end where its parent's next key
// begins.
func (y *yamlReader) end(indent int) {
	if !y.done && y.indent > indent {
		y.bad = true
	}
}

// value reads a scalar or flow collection that takes the rest of the current line.
func (y *yamlReader) value(text []byte, indent, depth int) {
	f := flowReader{text: text, out: y.out}
	f.value(depth)
	f.blanks()
	if y.bad = y.bad || f.bad || len(f.text) > 0 && f.text[0] != '#'; y.bad {
		return
	}
	y.out = f.out
	y.next()
	y.end(indent) // or the scalar goes on there
}

// key writes a key, which must be a string by any reading.
func (y *yamlReader) key(text []byte) {
	f := flowReader{text: text, out: y.out}
	f.scalar()
	y.bad = y.bad || f.bad || len(f.text) > 0 || f.out[len(f.out)-1] != '"'
	y.out = f.out
}

// keyEnd returns the place of the colon that ends a plain or quoted key at the beginning of line, or 0.
func keyEnd(line []byte) int {
	i := 0
	if c := line[0]; c == '"' || c == '\'' {
		i = 1 + bytes.IndexByte(line[1:], c)
		if i == 0 || bytes.IndexByte(line[:i], '\\') >= 0 {
			return 0
		}
		i++
	} else {
		for i < len(line) && isPlain(line[i]) {
			i++
		}
	}
	if i < min(len(line), maxYAMLKey) && line[i] == ':' && (i+1 == len(line) || line[i+1] == ' ') {
		return i
	}
	return 0
}

// isPlain tells of the characters that mean themselves wherever they are in a key, but for the first place.
func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-_./", c) >= 0
}
