// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// YAML writes a Dump, one Service port after the other, with its fields in the order of JSON. It makes YAML of the JSON text:
// the libraries decode and sort it on the way, which takes 10 times as long for 30,000 Services.
func YAML(w io.Writer, d *Dump) error {
	out := bufio.NewWriter(w)
	head, err := json.Marshal(d.header())
	if err != nil {
		return fmt.Errorf("encode %d tables: %w", len(d.Tables), err)
	}
	var y yamlText
	y.value(head, 0)
	_, _ = out.Write(y.out) // Flush returns the first error
	if len(d.ServicePorts) == 0 {
		fmt.Fprint(out, "\nservicePorts: []")
	} else {
		fmt.Fprint(out, "\nservicePorts:")
	}
	for i := range d.ServicePorts {
		text, err := json.Marshal(&d.ServicePorts[i])
		if err != nil {
			return fmt.Errorf("encode %s: %w", d.ServicePorts[i].Name, err)
		}
		y.out = append(y.out[:0], "\n- "...)
		y.value(text, 2)
		_, _ = out.Write(y.out)
	}
	fmt.Fprintln(out)
	return out.Flush()
}

// yamlText makes block style YAML of the JSON that encoding/json writes: without blanks.
type yamlText struct{ out []byte }

func (y *yamlText) newLine(indent int) {
	y.out = append(y.out, '\n')
	for range indent {
		y.out = append(y.out, ' ')
	}
}

// value appends the first value of b, whose lines but the first are indented, and returns what follows it.
func (y *yamlText) value(b []byte, indent int) []byte {
	switch b[0] {
	case '{':
		return y.object(b[1:], indent)
	case '[':
		return y.list(b[1:], indent)
	case '"':
		n := stringEnd(b)
		y.string(b[:n])
		return b[n:]
	}
	n := 0
	for n < len(b) && !strings.ContainsRune(",]}", rune(b[n])) {
		n++
	}
	y.out = append(y.out, b[:n]...)
	return b[n:]
}

// object appends the members of an object whose brace was read.
func (y *yamlText) object(b []byte, indent int) []byte {
	if b[0] == '}' {
		y.out = append(y.out, "{}"...)
		return b[1:]
	}
	for first := true; ; first = false {
		if !first {
			y.newLine(indent)
		}
		n := stringEnd(b)
		y.string(b[:n])
		y.out = append(y.out, ':')
		b = b[n+1:] // and the colon
		switch {
		case b[0] == '{' && b[1] != '}':
			y.newLine(indent + 2)
			b = y.value(b, indent+2)
		case b[0] == '[' && b[1] != ']':
			y.newLine(indent)
			b = y.value(b, indent)
		default:
			y.out = append(y.out, ' ')
			b = y.value(b, indent)
		}
		if b[0] == '}' {
			return b[1:]
		}
		b = b[1:] // the comma
	}
}

// list appends the items of a list whose bracket was read.
func (y *yamlText) list(b []byte, indent int) []byte {
	if b[0] == ']' {
		y.out = append(y.out, "[]"...)
		return b[1:]
	}
	for first := true; ; first = false {
		if !first {
			y.newLine(indent)
		}
		y.out = append(y.out, "- "...)
		if b = y.value(b, indent+2); b[0] == ']' {
			return b[1:]
		}
		b = b[1:] // the comma
	}
}

// stringEnd is the length of the string literal that b begins with.
func stringEnd(b []byte) int {
	i := 1
	for b[i] != '"' {
		if b[i] == '\\' {
			i++
		}
		i++
	}
	return i + 1
}

// string appends a string literal, plain where nobody can take it for something else: in quotes, JSON's is YAML's too.
func (y *yamlText) string(literal []byte) {
	if text := literal[1 : len(literal)-1]; plain(text) {
		literal = text
	}
	y.out = append(y.out, literal...)
}

// reserved are words that YAML 1.1 takes for something else than a string.
func reserved() []string {
	return []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
}

// plain tells words of letters, digits and a few signs that begin with a letter.
func plain(text []byte) bool {
	for i, c := range text {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (i == 0 || (c < '0' || c > '9') && c != '-' && c != '_' && c != '/' && c != '.') {
			return false
		}
	}
	return len(text) > 0 && !slices.Contains(reserved(), strings.ToLower(string(text)))
}
