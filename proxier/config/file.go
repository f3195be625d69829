// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// kubeKind is the kind of kube-proxy's document.
const kubeKind = "KubeProxyConfiguration"

// documents is the content of configuration files: at most one of each kind.
type documents struct {
	kube     *kubeproxyconfig.KubeProxyConfiguration
	own      *Own
	warnings []string
	wrong    []error // unknown and duplicate fields of own
}

// decodeFile adds all documents of a file; name is for errors only. kube-proxy reads the first document of a file and
// no other, so a file for both programs has the KubeProxyConfiguration first; here the order is free.
func (d *documents) decodeFile(name string, data []byte) error {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	found := 0
	for i := 1; ; i++ {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		var added bool
		if err == nil {
			added, err = d.add(doc)
		}
		if err != nil {
			return fmt.Errorf("%s: document %d: %w", name, i, err)
		}
		if added {
			found++
		}
	}
	if found == 0 {
		return fmt.Errorf("%s: contains neither a %s nor an %s", name, kubeKind, OwnKind)
	}
	return nil
}

// add decodes one document, unless it is empty. The own kind is decoded strictly. kube-proxy's is decoded leniently
// with a warning when only unknown or duplicate fields are wrong, as kube-proxy does it: its file may be of a later
// release.
func (d *documents) add(doc []byte) (added bool, err error) {
	text, err := yaml.YAMLToJSON(doc)
	if err != nil || string(text) == "null" { // blanks and comments
		return false, err
	}
	var meta struct{ APIVersion, Kind string }
	if err := json.Unmarshal(text, &meta); err != nil {
		return false, err
	}
	switch {
	case meta.APIVersion == OwnAPIVersion && meta.Kind == OwnKind:
		if d.own != nil {
			return false, fmt.Errorf("a second %s", OwnKind)
		}
		d.own = newOwn()
		strict, err := decode(doc, text, d.own)
		if err != nil {
			return false, fmt.Errorf("%s: %w", OwnKind, err)
		}
		for _, err := range strict {
			d.wrong = append(d.wrong, fmt.Errorf("%s: %w", OwnKind, err))
		}
	case meta.APIVersion == kubeproxyconfig.SchemeGroupVersion.String() && meta.Kind == kubeKind:
		if d.kube != nil {
			return false, fmt.Errorf("a second %s", kubeKind)
		}
		d.kube = &kubeproxyconfig.KubeProxyConfiguration{}
		strict, err := decode(doc, text, d.kube)
		if err != nil {
			return false, fmt.Errorf("%s: %w", kubeKind, err)
		}
		for _, err := range strict {
			d.warnings = append(d.warnings, fmt.Sprintf("%s: %v; ignored", kubeKind, err))
		}
	default:
		return false, fmt.Errorf("apiVersion %q, kind %q: must be %s of %s, or %s of %s",
			meta.APIVersion, meta.Kind, kubeKind, kubeproxyconfig.SchemeGroupVersion, OwnKind, OwnAPIVersion)
	}
	return true, nil
}

// decode reads one document, given also as JSON, into a pointer to a struct. strict are the unknown and duplicate
// fields; all other fields have been decoded nevertheless.
func decode(doc, text []byte, into any) (strict []error, err error) {
	if _, err := yaml.YAMLToJSONStrict(doc); err != nil { // a key that occurs twice, with its line
		strict = append(strict, err)
	}
	unknown, err := kjson.UnmarshalStrict(text, into)
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		return nil, fmt.Errorf("%s: must be of type %s, is a JSON %s", mismatch.Field, mismatch.Type, mismatch.Value)
	}
	keys := allKeys(reflect.TypeOf(into).Elem(), "")
	for _, err := range unknown {
		var wrong kjson.FieldError
		if errors.As(err, &wrong) {
			if near := nearest(wrong.FieldPath(), keys, len(wrong.FieldPath())/3); near != "" {
				err = fmt.Errorf("%w (did you mean %q?)", err, near)
			}
		}
		strict = append(strict, err)
	}
	return strict, err
}

// allKeys lists the keys of a configuration type as dotted JSON names, leaves only.
func allKeys(t reflect.Type, prefix string) []string {
	var out []string
	for i := range t.NumField() {
		f := t.Field(i)
		name := jsonName(f)
		switch {
		case name == "" && f.Anonymous && f.Type.Name() != "TypeMeta": // inlined
			out = append(out, allKeys(f.Type, prefix)...)
		case name == "":
		case f.Type.Kind() == reflect.Struct && !isLeaf(f.Type):
			out = append(out, allKeys(f.Type, prefix+name+".")...)
		default:
			out = append(out, prefix+name)
		}
	}
	return out
}

// isLeaf reports whether a struct is written as one value: those of metav1 and those with an UnmarshalJSON or
// UnmarshalText.
func isLeaf(t reflect.Type) bool {
	_, isJSON := reflect.PointerTo(t).MethodByName("UnmarshalJSON")
	_, isText := reflect.PointerTo(t).MethodByName("UnmarshalText")
	return isJSON || isText
}

// jsonName is a field's name in a file; empty for what is inlined.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// nearest returns the key that was probably meant: the one with the smallest edit distance up to most, or the same name
// in another section. Empty if there is none, or if the key itself is known.
func nearest(wrong string, keys []string, most int) string {
	best, least := "", most+1
	for _, key := range keys {
		if key == wrong {
			return ""
		}
		d := editDistance(wrong, key)
		if strings.HasSuffix(key, "."+wrong) {
			d = 1
		}
		if d < least {
			best, least = key, d
		}
	}
	return best
}

// editDistance is Levenshtein's distance in bytes, without regard to case.
func editDistance(a, b string) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// Write writes both documents with all defaults, as --write-config-to does. The KubeProxyConfiguration comes first,
// because kube-proxy reads no further.
func (c *Config) Write(w io.Writer) error {
	kube, err := yaml.Marshal(c.External)
	if err != nil {
		return fmt.Errorf("encode configuration: %w", err)
	}
	own, err := yaml.Marshal(c.Own)
	if err != nil {
		return fmt.Errorf("encode configuration: %w", err)
	}
	_, err = w.Write(slices.Concat(kube, []byte("---\n"), own))
	return err
}
