// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// FileError says where in which manifest file something is wrong.
type FileError struct {
	Path string
	// Document counts from 1; Item counts the items of a list from 1 and is 0 outside one. Both are 0 where the file as a
	// whole is meant.
	Document, Item int
	Err            error
}

// Error returns "path: document 1, item 2: reason".
func (e *FileError) Error() string {
	text := e.Path
	if e.Document != 0 {
		text = fmt.Sprintf("%s: document %d", text, e.Document)
	}
	if e.Item != 0 {
		text = fmt.Sprintf("%s, item %d", text, e.Item)
	}
	if e.Err == nil {
		return text
	}
	return fmt.Sprintf("%s: %v", text, e.Err)
}

// Unwrap returns the reason.
func (e *FileError) Unwrap() error { return e.Err }

// Reasons why a document cannot be used.
var (
	errType    = errors.New("a value of the wrong type")
	errField   = errors.New("an unknown field, or one that is given twice")
	errNoKind  = errors.New("kind and apiVersion must be given")
	errVersion = errors.New("apiVersion is not one that is understood")
	errName    = errors.New("not a valid name")
)

// reading is what one object of a manifest was read as.
type reading struct {
	// item is its place in a list, from 1; 0 outside one.
	item int
	// ref is what it is about. The name is empty where that cannot be told, and for what is not for the proxy.
	ref Ref
	// object is nil for what is none of the proxy's business, and where there is no telling what it should be.
	object Object
	*trouble
}

// trouble is what there is to say about a reading.
type trouble struct {
	// broken says why there is no telling what the object should be: its last good state stays.
	broken error
	// problems are about fields of the object that were left out.
	problems []error
	// ignored is the kind of something that is not for the proxy.
	ignored string
}

// add notes what was left out.
func (r *reading) add(problems []error) {
	switch {
	case len(problems) == 0:
	case r.trouble == nil:
		r.trouble = &trouble{problems: problems}
	default:
		r.trouble.problems = append(r.trouble.problems, problems...)
	}
}

func unreadable(err error) reading { return reading{trouble: &trouble{broken: err}} }

// manifestKind returns the kind that a manifest means, and false for one that is not for the proxy.
func manifestKind(h head) (k Kind, known bool, err error) {
	want := ""
	switch h.kind {
	case "Service":
		k, want = KindService, "v1"
	case "Node":
		k, want = KindNode, "v1"
	case "EndpointSlice":
		k, want = KindEndpointSlice, "discovery.k8s.io/v1"
	case "ServiceCIDR":
		k, want = KindServiceCIDR, "networking.k8s.io/v1"
	case "":
		return 0, false, errNoKind
	default:
		return 0, false, nil
	}
	if h.apiVersion != want {
		return 0, false, fmt.Errorf("%s of %q instead of %q: %w", h.kind, h.apiVersion, want, errVersion)
	}
	return k, true, nil
}

// readObject reads one object, which is not a list, from JSON.
func readObject(h head, data []byte) reading {
	kind, known, err := manifestKind(h)
	switch {
	case err != nil:
		return unreadable(err)
	case !known:
		return reading{trouble: &trouble{ignored: h.kind}}
	}
	switch kind {
	case KindService:
		return decode(kind, data, &v1.Service{}, converter(FromService))
	case KindEndpointSlice:
		return decode(kind, data, &discovery.EndpointSlice{}, converter(FromEndpointSlice))
	case KindNode:
		return decode(kind, data, &v1.Node{}, converter(FromNode))
	}
	return decode(kind, data, &networking.ServiceCIDR{}, converter(FromServiceCIDR))
}

// decode reads data into o and converts it.
func decode(kind Kind, data []byte, o apiObject, convert func(runtime.Object) (Object, []error)) reading {
	strict, err := kjson.UnmarshalStrict(data, o)
	if bad, offset := kjson.SyntaxErrorOffset(err); bad {
		return unreadable(fmt.Errorf("byte %d: %w", offset, err))
	}
	// Behind a value of the wrong type the decoder went on, so the name is known.
	setDefaults(kind, o)
	r := reading{ref: Ref{kind, Name{o.GetNamespace(), o.GetName()}}}
	bad := checkName(r.ref)
	switch {
	case bad != nil && err != nil:
		return unreadable(typeError(r.ref, err))
	case bad != nil:
		return unreadable(fmt.Errorf("%s: %w", r.ref, bad))
	case err != nil:
		r.trouble = &trouble{broken: typeError(r.ref, err)}
		return r
	}
	var problems []error
	r.object, problems = convert(o)
	for _, e := range strict {
		problems = append(problems, strictError(r.ref, e))
	}
	r.add(problems)
	return r
}

// apiObject is what the four kinds of the API have in common.
type apiObject interface {
	runtime.Object
	metav1.Object
}

// typeError names the field whose value is of the wrong type.
func typeError(ref Ref, err error) error {
	var mistyped *json.UnmarshalTypeError
	if !errors.As(err, &mistyped) {
		return fmt.Errorf("%s: %w", ref, err)
	}
	return &FieldError{ref, mistyped.Field, fmt.Errorf("%s instead of %s: %w", mistyped.Value, mistyped.Type, errType)}
}

// strictError puts what the decoder says of an unknown or duplicate field into our form.
func strictError(ref Ref, err error) error {
	var at kjson.FieldError
	if !errors.As(err, &at) {
		return fmt.Errorf("%s: %w", ref, err)
	}
	return &FieldError{ref, at.FieldPath(), errField}
}

// setDefaults fills in what the API server would, as far as the conversion needs it.
func setDefaults(kind Kind, o apiObject) {
	switch {
	case kind == KindNode || kind == KindServiceCIDR:
		o.SetNamespace("")
	case o.GetNamespace() == "":
		o.SetNamespace(metav1.NamespaceDefault)
	}
	if s, ok := o.(*discovery.EndpointSlice); ok {
		for i := range s.Ports {
			if s.Ports[i].Name == nil {
				s.Ports[i].Name = new(string)
			}
		}
	}
}

// checkName holds a name against RFC 1123: 253 characters in labels of 63; the name of a Service and a namespace are
// single labels. Nobody else checks what comes from files, and names end up in file names of others, and in logs.
func checkName(r Ref) error {
	limit := 253
	if r.Kind == KindService {
		limit = 63
	}
	if !isDNS(r.Name.Name, limit, r.Kind != KindService) {
		return fmt.Errorf("metadata.name: %w", errName)
	}
	if r.Name.Namespace != "" && !isDNS(r.Name.Namespace, 63, false) {
		return fmt.Errorf("metadata.namespace: %w", errName)
	}
	return nil
}

// isDNS tells whether s is a label, or where dots are allowed a sequence of labels, of at most limit characters.
func isDNS(s string, limit int, dots bool) bool {
	if len(s) > limit {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if len(label) == 0 || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-') {
				return false
			}
		}
	}
	return dots || !strings.Contains(s, ".")
}

// toJSON turns a document of a manifest into JSON, in scratch if there is room. What is JSON is returned as it is. The
// problems are keys that are given twice, of which the last one counts.
func toJSON(scratch *[]byte, doc []byte) (out []byte, problems []error, err error) {
	if t := bytes.TrimLeft(doc, " \t\r\n"); len(t) > 0 && t[0] == '{' && json.Valid(t) {
		return t, nil, nil
	}
	fast, ok := fastJSON((*scratch)[:0], doc)
	*scratch = fast[:0]
	if ok {
		return fast, nil, nil
	}
	if out, err = yaml.YAMLToJSONStrict(doc); err == nil {
		return out, nil, nil
	}
	problems = []error{err}
	out, err = yaml.YAMLToJSON(doc)
	return out, problems, err
}
