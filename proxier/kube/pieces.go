// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"hash/maphash"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
)

// piece is a document of a manifest file, or an item of a list in it, as text.
type piece struct {
	document, item int // both count from 1; item is 0 outside a list
	text           []byte
	head           *head             // of JSON; nil for YAML, which has to become JSON first
	broken         error             // there is no text, because of this
	old            map[uint64]*claim // what texts of this file were read as before, by hash
}

// reads is what a piece was read as: one object, or the items of a list.
type reads struct {
	piece
	hash uint64 // of the text
	same *claim // what this very text was read as before, or nil
	list []reading
}

// cutFile cuts a file into pieces. It is JSON, one value after the other, if its name ends so, else YAML.
func cutFile(name string, data []byte) []piece {
	if filepath.Ext(name) == ".json" {
		return cutJSON(data)
	}
	return cutYAML(data)
}

// cutJSON cuts a sequence of JSON objects, and lists among them into their items.
func cutJSON(data []byte) (out []piece) {
	s := jsonScanner{data: data}
	for n := 1; s.skipBlanks(); n++ {
		start := s.pos
		h, err := s.head(0)
		if err != nil {
			return append(out, piece{document: n, broken: err})
		}
		out = append(out, items(n, headed{text: data[start:s.pos], head: h})...)
	}
	return out
}

// items returns the items of a list, or the object itself if it is no list.
func items(document int, o headed) (out []piece) {
	kind, isList := strings.CutSuffix(o.head.kind, "List")
	if !isList {
		return []piece{{document: document, text: o.text, head: &o.head}}
	}
	for i, item := range o.head.items {
		if h := &item.head; h.kind == "" && kind != "" { // the server's own lists say kind and version once
			h.kind, h.apiVersion = kind, o.head.apiVersion
		}
		out = append(out, piece{document: document, item: i + 1, text: item.text, head: &item.head, broken: item.broken})
	}
	return out
}

// cutYAML cuts at the lines that begin with three dashes. YAML allows no such line inside a document, be it in a
// scalar. Documents of nothing but comments are left out and do not count.
func cutYAML(data []byte) (out []piece) {
	for len(data) > 0 {
		text, rest := data, []byte(nil)
		if i := separator(data); i >= 0 {
			text, rest = data[:i], bytes.TrimLeft(data[i+len("---"):], "\r\n") // so that a text is the same wherever it moves
		}
		if !blank(text) {
			out = append(out, piece{document: len(out) + 1, text: text})
		}
		data = rest
	}
	return out
}

// separator returns where in data a line begins that separates documents, or -1.
func separator(data []byte) int {
	for i := 0; ; {
		if rest := data[i:]; bytes.HasPrefix(rest, []byte("---")) && (len(rest) == 3 || rest[3] <= ' ') {
			return i
		}
		next := bytes.Index(data[i:], []byte("\n---"))
		if next < 0 {
			return -1
		}
		i += next + 1
	}
}

// blank tells whether a document holds nothing.
func blank(text []byte) bool {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// readAll reads pieces on all processors, but for those whose text is known. (Two texts of one hash of 64 bits would be
// taken for the same: among 100,000 the odds are 1 to 3,600 million.)
func readAll(pieces []piece, seed maphash.Seed) []reads {
	out := make([]reads, len(pieces))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(pieces)) {
		wg.Go(func() {
			var scratch []byte
			for i := next.Add(1) - 1; i < int64(len(pieces)); i = next.Add(1) - 1 {
				r := &out[i]
				r.piece = pieces[i]
				r.hash = maphash.Bytes(seed, r.text)
				if r.same = r.old[r.hash]; r.same == nil {
					r.list, scratch = read(&r.piece, scratch)
				}
				r.text, r.head, r.old = nil, nil, nil
			}
		})
	}
	wg.Wait()
	return out
}

// read reads a piece. It writes to scratch, which it returns for the next time.
func read(p *piece, scratch []byte) ([]reading, []byte) {
	if p.broken != nil {
		r := unreadable(p.broken)
		r.item = p.item
		return []reading{r}, scratch
	}
	if p.head != nil {
		r := readObject(*p.head, p.text)
		r.item = p.item
		return []reading{r}, scratch
	}
	text, problems, err := toJSON(&scratch, p.text)
	if err != nil {
		return []reading{unreadable(err)}, scratch
	}
	h, err := readHead(text)
	if err != nil {
		return []reading{unreadable(err)}, scratch
	}
	var out []reading
	for _, item := range items(p.document, headed{text: text, head: h}) {
		one, _ := read(&item, nil)
		one[0].add(problems)
		out = append(out, one...)
	}
	return out, scratch
}
