// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// protoList is a list of n Services as a server sends it.
func protoList(tb testing.TB, n int) []byte {
	tb.Helper()
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		tb.Fatal(err)
	}
	list := &v1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "42", Continue: "more"}}
	list.SetGroupVersionKind(v1.SchemeGroupVersion.WithKind("ServiceList"))
	for i := range n {
		list.Items = append(list.Items, *service(fmt.Sprint("s", i), fmt.Sprintf("10.96.%d.%d", i>>8, i&255)))
	}
	var b bytes.Buffer
	if err := protobuf.NewSerializer(scheme, scheme).Encode(list, &b); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func services() *resource { return &resources("n1")[0] }

func TestReadList(t *testing.T) {
	for _, n := range []int{0, 1, 1000} {
		list, err := readList(bytes.NewReader(protoList(t, n)), services())
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != n || list.ResourceVersion != "42" || list.Continue != "more" {
			t.Fatalf("list of %d: %d items, %+v", n, len(list.Items), list.ListMeta)
		}
		for i, o := range list.Items {
			want, _ := FromService(service(fmt.Sprint("s", i), fmt.Sprintf("10.96.%d.%d", i>>8, i&255)))
			if got := o.(*item); !want.Equal(got.object.(*Service)) || got.name != want.Name {
				t.Fatalf("item %d is %+v, want %+v", i, got.object, want)
			}
		}
	}
}

// A list that ends early is an error wherever it ends: what is not in a list would be deleted.
func TestReadListCutShort(t *testing.T) {
	data := protoList(t, 3)
	for i := range data[:len(data)-4] { // the last four are the empty fields contentEncoding and contentType
		if list, err := readList(bytes.NewReader(data[:i]), services()); err == nil {
			t.Errorf("the first %d of %d bytes are a list of %d", i, len(data), len(list.Items))
		}
	}
	if _, err := readList(bytes.NewReader([]byte(`{"kind":"ServiceList"}`)), services()); !errors.Is(err, errNoProtobuf) {
		t.Errorf("JSON: %v", err)
	}
}

func FuzzReadList(f *testing.F) {
	f.Add(protoList(f, 2))
	f.Fuzz(func(t *testing.T, data []byte) {
		if list, err := readList(bytes.NewReader(data), services()); err == nil && list.ResourceVersion == "" {
			t.Errorf("%q is a list without a version", data)
		}
	})
}
