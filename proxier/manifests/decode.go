// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode"

	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/nftproxy/nftproxy/proxier/kube"
)

// where is a place in a manifest file. Document and item count from 1; item is 0 outside a list.
type where struct {
	path           string
	document, item int
}

// String returns "path: document 1, item 2".
func (w where) String() string {
	text := fmt.Sprintf("%s: document %d", kube.Printable(w.path), w.document)
	if w.item != 0 {
		text = fmt.Sprintf("%s, item %d", text, w.item)
	}
	return text
}

// located puts the place before an error.
func located(place string, err error) error {
	reason := err.Error()
	if strings.ContainsFunc(reason, func(c rune) bool { return !unicode.IsPrint(c) }) { // libraries quote what is in the file
		return fmt.Errorf("%s: %s", place, kube.Printable(reason))
	}
	return fmt.Errorf("%s: %w", place, err)
}

// Reasons why a document cannot be used.
var (
	errNoKind    = errors.New("kind and apiVersion must be given")
	errVersion   = errors.New("unknown apiVersion")
	errCut       = errors.New("the last line has no newline, the file may be cut short: removals and the last document do not count")
	errEmpty     = errors.New("the file is empty: its former objects stay")
	errDuplicate = errors.New("defined twice, the first one counts")
)

// kinds are the kinds that the proxy uses. Others are ignored.
var kinds = map[string]bool{"Service": true, "EndpointSlice": true, "Node": true, "ServiceCIDR": true}

// definition is what one place in a file defines.
type definition struct {
	ref      kube.Ref
	object   kube.Object // nil if the proxy does not use it
	problems []error
	where    where
}

// decoder decodes manifest files. It is safe for concurrent use.
type decoder struct{ codec runtime.Decoder }

// newDecoder returns a decoder that reports unknown and repeated fields, and decodes the rest of the object.
func newDecoder() decoder {
	return decoder{serializer.NewCodecFactory(kube.Scheme(), serializer.EnableStrict).UniversalDeserializer()}
}

// contents is what a file defines.
type contents struct {
	definitions []definition
	broken      []error         // one per document or item that cannot be decoded
	ignored     map[string]bool // kinds that the proxy does not use
	// cut is set if the file may be cut short; empty if it holds nothing at all.
	cut, empty bool
}

// file decodes a file: JSON values one after the other if its name ends in .json, else YAML documents.
func (d decoder) file(path string, data []byte) *contents {
	c := &contents{ignored: map[string]bool{}, empty: len(bytes.TrimSpace(data)) == 0}
	next := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))).Read
	if filepath.Ext(path) == ".json" {
		values := json.NewDecoder(bytes.NewReader(data))
		next = func() ([]byte, error) {
			var value json.RawMessage
			err := values.Decode(&value)
			return value, err
		}
	}
	c.cut = !bytes.HasSuffix(data, []byte("\n")) && !json.Valid(data) // one JSON value is complete without a newline
	for n := 1; ; n++ {
		doc, err := next()
		if errors.Is(err, io.EOF) {
			return c
		}
		at := where{path: path, document: n}
		if err != nil { // neither reader finds the next document after an error
			c.fail(at, err)
			return c
		}
		value, problem, err := toJSON(doc)
		switch {
		case err != nil:
			c.fail(at, err)
		case string(value) == "null": // comments only
			n--
		default:
			d.document(c, at, value, problem)
		}
	}
}

// fail notes a document or item that cannot be decoded.
func (c *contents) fail(at where, err error) { c.broken = append(c.broken, located(at.String(), err)) }

// toJSON converts a document. The problem is a key that is given twice: the last one counts.
func toJSON(doc []byte) (value []byte, problem, err error) {
	if json.Valid(doc) {
		return bytes.TrimSpace(doc), nil, nil
	}
	value, problem = yaml.YAMLToJSONStrict(doc)
	if problem == nil {
		return value, nil, nil
	}
	value, err = yaml.YAMLToJSON(doc)
	return value, problem, err
}

// document decodes an object, or the items of a list.
func (d decoder) document(c *contents, at where, value []byte, problem error) {
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Items           []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(value, &head); err != nil {
		c.fail(at, err)
		return
	}
	itemKind, isList := strings.CutSuffix(head.Kind, "List")
	if !isList {
		d.object(c, at, value, metav1.TypeMeta{}, problem)
		return
	}
	var defaults metav1.TypeMeta // the API server's own lists give kind and version once
	if itemKind != "" {
		defaults = metav1.TypeMeta{Kind: itemKind, APIVersion: head.APIVersion}
	}
	for i, item := range head.Items {
		at.item = i + 1
		d.object(c, at, item, defaults, problem)
	}
}

// object decodes one object and appends it to c.
func (d decoder) object(c *contents, at where, value []byte, defaults metav1.TypeMeta, problem error) {
	gvk := defaults.GroupVersionKind()
	o, actual, err := d.codec.Decode(value, &gvk, nil)
	strict, _ := runtime.AsStrictDecodingError(err)
	switch {
	case runtime.IsMissingKind(err) || runtime.IsMissingVersion(err):
		c.fail(at, errNoKind) // the library's error holds the whole document
		return
	case runtime.IsNotRegisteredError(err) && kinds[actual.Kind]:
		c.fail(at, fmt.Errorf("%s of %q: %w", actual.Kind, actual.GroupVersion(), errVersion))
		return
	case runtime.IsNotRegisteredError(err):
		c.ignored[kube.Printable(actual.Kind)] = true
		return
	case err != nil && strict == nil:
		c.fail(at, err)
		return
	}
	meta, ok := o.(metav1.Object)
	if !ok || !kinds[actual.Kind] {
		c.ignored[kube.Printable(actual.Kind)] = true
		return
	}
	setDefaults(o, meta, actual.Kind)
	if err := checkName(actual.Kind, meta); err != nil {
		c.fail(at, err)
		return
	}
	def := definition{where: at}
	var problems []error
	def.ref, def.object, problems, _ = kube.Convert(o)
	if strict != nil {
		for _, err := range strict.Errors() {
			problems = append(problems, fmt.Errorf("%s: %w", def.ref, err))
		}
	}
	if problem != nil {
		problems = append(problems, problem)
	}
	for _, err := range problems {
		def.problems = append(def.problems, located(at.String(), err))
	}
	c.definitions = append(c.definitions, def)
}

// setDefaults sets what the API server would set, as far as the conversion depends on it.
func setDefaults(o runtime.Object, meta metav1.Object, kind string) {
	switch {
	case kind == "Node" || kind == "ServiceCIDR":
		meta.SetNamespace("")
	case meta.GetNamespace() == "":
		meta.SetNamespace(metav1.NamespaceDefault)
	}
	if slice, ok := o.(*discovery.EndpointSlice); ok {
		for i := range slice.Ports {
			if slice.Ports[i].Name == nil {
				slice.Ports[i].Name = new(string)
			}
		}
	}
}

// checkName validates a name as the API server does.
func checkName(kind string, meta metav1.Object) error {
	check := validation.IsDNS1123Subdomain
	if kind == "Service" {
		check = validation.IsDNS1123Label
	}
	if problems := check(meta.GetName()); len(problems) > 0 {
		return fmt.Errorf("%s %s: metadata.name: %s", kind, kube.Printable(meta.GetName()), problems[0])
	}
	if namespace := meta.GetNamespace(); namespace != "" {
		if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
			return fmt.Errorf("%s %s: metadata.namespace: %s", kind, kube.Printable(namespace), problems[0])
		}
	}
	return nil
}
