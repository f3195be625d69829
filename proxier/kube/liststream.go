// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
)

// errNoProtobuf says that the server did not answer in protobuf.
var errNoProtobuf = errors.New("not a Kubernetes protobuf message")

// maxListItem is how long one object of a list may be: etcd takes 1.5 MiB at most, and 16 MiB is beyond any doubt.
const maxListItem = 16 << 20

// message is what generated types of the API offer.
type message interface {
	runtime.Object
	Unmarshal([]byte) error
}

// readList reads a list object by object, so that a server that does not stream (before KEP-3157) costs no more memory
// than one that does: client-go would hold the whole answer and then all objects, 50 MiB for 10,000 Services.
//
// The answer is the four bytes "k8s\0" and a runtime.Unknown, whose field 2 (raw) is the list: a message with
// the list's metadata as field 1 and the objects as field 2. All of that, and nothing else, is API
// (apimachinery, runtime/generated.proto and meta/v1/generated.proto).
func readList(r io.Reader, res *resource) (*itemList, error) {
	p := protoReader{r: bufio.NewReaderSize(r, 1<<16)}
	var magic [4]byte
	if _, err := io.ReadFull(p.r, magic[:]); err != nil || string(magic[:]) != "k8s\x00" {
		return nil, errNoProtobuf
	}
	out := &itemList{}
	for {
		field, size, err := p.field()
		switch {
		case err == io.EOF:
			return nil, fmt.Errorf("no list: %w", errNoProtobuf)
		case err != nil:
			return nil, err
		case field != 2:
			err = p.skip(size)
		default:
			return out, p.list(size, res, out)
		}
		if err != nil {
			return nil, err
		}
	}
}

// protoReader reads fields of protobuf messages.
type protoReader struct {
	r   *bufio.Reader
	buf []byte
}

// field reads the head of a field that has a length; the API has no other at these places.
func (p *protoReader) field() (number, size uint64, err error) {
	tag, err := binary.ReadUvarint(p.r)
	if err != nil {
		return 0, 0, err // io.EOF only if there is nothing more
	}
	if tag&7 != 2 {
		return 0, 0, fmt.Errorf("field %d of wire type %d: %w", tag>>3, tag&7, errNoProtobuf)
	}
	size, err = binary.ReadUvarint(p.r)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return tag >> 3, size, err
}

func (p *protoReader) skip(size uint64) error {
	if size > maxListItem {
		return fmt.Errorf("field of %d bytes: %w", size, errNoProtobuf)
	}
	_, err := io.CopyN(io.Discard, p.r, int64(size))
	return err
}

// bytes reads a field, which is valid until the next call.
func (p *protoReader) bytes(size uint64) ([]byte, error) {
	if size > maxListItem {
		return nil, fmt.Errorf("object of %d bytes: %w", size, errNoProtobuf)
	}
	if uint64(cap(p.buf)) < size {
		p.buf = make([]byte, size, size+size/2)
	}
	buf := p.buf[:size]
	_, err := io.ReadFull(p.r, buf)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return buf, err
}

// list reads a list that is size bytes long: all of them, since what a list lacks is taken for gone.
func (p *protoReader) list(size uint64, res *resource, out *itemList) error {
	limit := &io.LimitedReader{R: p.r, N: int64(size)}
	p.r = bufio.NewReaderSize(limit, 1<<16)
	for {
		field, size, err := p.field()
		if err == io.EOF && limit.N == 0 && out.ResourceVersion != "" {
			return nil
		}
		var data []byte
		if err == nil {
			data, err = p.bytes(size)
		}
		switch {
		case err == io.EOF:
			err = io.ErrUnexpectedEOF
		case err != nil:
		case field == 1:
			err = out.ListMeta.Unmarshal(data)
		case field == 2:
			err = out.add(data, res)
		}
		if err != nil {
			return fmt.Errorf("object %d of a list: %w", len(out.Items), err)
		}
	}
}

// add decodes and converts an object.
func (l *itemList) add(data []byte, res *resource) error {
	o := res.newObject()
	if err := o.Unmarshal(data); err != nil {
		return err
	}
	i, err := newItem(o)
	if err != nil {
		return err
	}
	i.object, i.problems = res.convert(o)
	l.Items = append(l.Items, i)
	return nil
}
