// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// documents is what a configuration file holds: at most one of each kind.
type documents struct {
	kube     *kubeproxyconfig.KubeProxyConfiguration
	own      *NFTProxyConfiguration
	warnings []string
}

// typeMeta is the part of a document that says what it is.
type typeMeta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// decodeFile reads all documents of a file. name is for errors only. kube-proxy
// reads the first document of a file and no other, so a file that both are to
// read has the KubeProxyConfiguration first; here the order is free.
func decodeFile(name string, data []byte) (documents, error) {
	var docs documents
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for i := 1; ; i++ {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && emptyDocument(doc) {
			continue
		}
		if err == nil {
			err = docs.add(doc)
		}
		if err != nil {
			return documents{}, fmt.Errorf("%s: document %d: %w", name, i, err)
		}
	}
	if docs.kube == nil && docs.own == nil {
		return documents{}, fmt.Errorf("%s: neither a KubeProxyConfiguration nor an NFTProxyConfiguration in it", name)
	}
	return docs, nil
}

// add decodes one document into its place.
func (d *documents) add(doc []byte) error {
	var meta typeMeta
	if err := yaml.Unmarshal(doc, &meta); err != nil {
		return err
	}
	if meta.APIVersion == OwnAPIVersion {
		return d.addOwn(doc, meta)
	}
	if d.kube != nil {
		return fmt.Errorf("a second %s; one was read before", meta.Kind)
	}
	kube, warning, err := decodeKube(doc)
	if err != nil {
		return err
	}
	d.kube = kube
	if warning != "" {
		d.warnings = append(d.warnings, warning)
	}
	return nil
}

// addOwn decodes our own kind, strictly: there is no older version of it that
// a lenient decoder would have to be kind to.
func (d *documents) addOwn(doc []byte, meta typeMeta) error {
	if meta.Kind != OwnKind {
		return fmt.Errorf("kind %q of %s: only %s exists", meta.Kind, OwnAPIVersion, OwnKind)
	}
	if d.own != nil {
		return fmt.Errorf("a second %s; one was read before", OwnKind)
	}
	own := newOwnDocument()
	if err := yaml.UnmarshalStrict(doc, own); err != nil {
		return fmt.Errorf("%s: %w", OwnKind, err)
	}
	d.own = own
	return nil
}

// decodeKube decodes a KubeProxyConfiguration strictly, and when that fails for
// unknown or duplicate fields leniently, with a warning that names them.
func decodeKube(doc []byte) (*kubeproxyconfig.KubeProxyConfiguration, string, error) {
	scheme := runtime.NewScheme()
	if err := kubeproxyconfig.AddToScheme(scheme); err != nil {
		return nil, "", err
	}
	kube, strictErr := decodeWith(scheme, doc, serializer.EnableStrict)
	if strictErr == nil {
		return kube, "", nil
	}
	if !runtime.IsStrictDecodingError(strictErr) {
		return nil, "", fmt.Errorf("KubeProxyConfiguration: %w", strictErr)
	}
	kube, err := decodeWith(scheme, doc, serializer.DisableStrict)
	if err != nil {
		return nil, "", fmt.Errorf("KubeProxyConfiguration: %w", strictErr)
	}
	return kube, fmt.Sprintf("KubeProxyConfiguration: strict decoding failed, the fields in question are ignored: %v", strictErr), nil
}

// decodeWith decodes with one strictness. The object is not converted to an
// internal version, so there is nothing between the file and the type.
func decodeWith(scheme *runtime.Scheme, doc []byte, strict serializer.CodecFactoryOptionsMutator) (*kubeproxyconfig.KubeProxyConfiguration, error) {
	codecs := serializer.NewCodecFactory(scheme, strict)
	obj, gvk, err := codecs.UniversalDeserializer().Decode(doc, nil, nil)
	if err != nil {
		return nil, err
	}
	kube, ok := obj.(*kubeproxyconfig.KubeProxyConfiguration)
	if !ok {
		return nil, fmt.Errorf("kind %v is not KubeProxyConfiguration", gvk)
	}
	return kube, nil
}

// emptyDocument reports whether a document has nothing but blanks and comments.
func emptyDocument(doc []byte) bool {
	for line := range bytes.Lines(doc) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}
