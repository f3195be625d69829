// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nftproxy/nftproxy/proxier/explain"
	"github.com/nftproxy/nftproxy/proxier/inspect"
	"github.com/nftproxy/nftproxy/proxier/trace"
)

var update = flag.Bool("update", false, "rewrite docs/dump.schema.json")

const schemaFile = "../../docs/dump.schema.json"

// The schema that docs/ has is that of the documents: fields, which of them are always there, values, and the comments.
func TestSchemaIsOfTheDocuments(t *testing.T) {
	s := schema{docs: map[string]string{}, values: map[string][]any{}, defs: map[string]any{}}
	s.readComments(t, "../../proxier/inspect", "../../proxier/explain", "../../proxier/trace", "../../routing")
	doc := map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"$id":     "https://nftproxy.io/schemas/v1alpha1/dump.json",
		"title":   "What nftproxy dump prints with -o json and -o yaml and with --diff -o json, explain with -o json, and trace with -o json on each line",
		"description": "Fields are only ever added to a version. Readers must ignore those that they do not know, which is why " +
			"additional properties are allowed.",
		"oneOf": []any{
			s.of(reflect.TypeFor[inspect.Dump](), ""), s.of(reflect.TypeFor[inspect.Drift](), ""),
			s.of(reflect.TypeFor[explain.Explanation](), ""), s.of(reflect.TypeFor[trace.Path](), ""),
		},
	}
	for name, kind := range map[string]string{"Dump": inspect.Kind, "Drift": inspect.KindDrift, "Explanation": explain.Kind, "Path": trace.Kind} {
		properties := s.defs[name].(map[string]any)["properties"].(map[string]any)
		properties["apiVersion"] = map[string]any{"const": inspect.APIVersion}
		properties["kind"] = map[string]any{"const": kind}
	}
	doc["$defs"] = s.defs
	var got bytes.Buffer
	e := json.NewEncoder(&got)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(doc); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(schemaFile, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got.String()); d != "" {
		t.Errorf("%s is not of the documents (go test ./cmd/nftproxy -update): (-want +got)\n%s", schemaFile, d)
	}
}

// schema makes JSON schemas of Go types.
type schema struct {
	docs   map[string]string // by type, or type.field
	values map[string][]any  // of a string type's constants
	defs   map[string]any
}

// of returns the schema of a type; a struct's goes to the definitions.
func (s *schema) of(t reflect.Type, doc string) map[string]any {
	out := map[string]any{}
	if doc != "" {
		out["description"] = doc
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem(), doc)
	case reflect.Slice:
		out["type"], out["items"] = "array", s.of(t.Elem(), "")
	case reflect.Map:
		out["type"], out["additionalProperties"] = "object", s.of(t.Elem(), "")
	case reflect.Bool:
		out["type"] = "boolean"
	case reflect.String:
		out["type"] = "string"
		if v := s.values[t.Name()]; v != nil {
			out["enum"] = v
		}
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			out["type"], out["format"] = "string", "date-time"
			break
		}
		out["$ref"] = "#/$defs/" + t.Name()
		s.define(t)
	case reflect.Float64:
		out["type"], out["minimum"], out["maximum"] = "number", 0, 1
	case reflect.Int32:
		out["type"] = "integer"
	default:
		out["type"], out["minimum"] = "integer", 0
	}
	return out
}

func (s *schema) define(t reflect.Type) {
	if _, ok := s.defs[t.Name()]; ok {
		return
	}
	properties, required := map[string]any{}, []string{}
	def := map[string]any{"type": "object", "description": s.docs[t.Name()], "properties": properties}
	s.defs[t.Name()] = def
	embedded := func(f reflect.StructField) string {
		if f.PkgPath == "" && len(f.Index) > 1 {
			return t.FieldByIndex(f.Index[:1]).Type.Name()
		}
		return t.Name()
	}
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous || !f.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		properties[name] = s.of(f.Type, s.docs[embedded(f)+"."+f.Name])
		if options == "" {
			required = append(required, name)
		}
	}
	def["required"] = required
}

// readComments collects the comments of types and fields, and the constants of string types.
func (s *schema) readComments(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range file.Decls {
				if g, ok := d.(*ast.GenDecl); ok {
					for _, spec := range g.Specs {
						s.readSpec(spec, g.Doc)
					}
				}
			}
		}
	}
}

func (s *schema) readSpec(spec ast.Spec, outer *ast.CommentGroup) {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		s.docs[spec.Name.Name] = oneLine(outer)
		if st, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range st.Fields.List {
				for _, n := range f.Names {
					s.docs[spec.Name.Name+"."+n.Name] = oneLine(f.Doc)
				}
			}
		}
	case *ast.ValueSpec:
		typ, ok := spec.Type.(*ast.Ident)
		if !ok || len(spec.Values) == 0 {
			return
		}
		if lit, ok := spec.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
			v, _ := strconv.Unquote(lit.Value)
			s.values[typ.Name] = append(s.values[typ.Name], v)
		}
	}
}

func oneLine(c *ast.CommentGroup) string {
	if c == nil {
		return ""
	}
	return strings.Join(strings.Fields(c.Text()), " ")
}
