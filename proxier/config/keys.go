// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"
)

// keysWithoutMeaning are the keys of KubeProxyConfiguration that are accepted,
// warned about when set, and otherwise ignored, with the reason.
var keysWithoutMeaning = map[string]string{
	"iptables.localhostNodePorts": "list localhost in nodePortAddresses instead",
	"ipvs":                        reasonIPVS,
	"winkernel":                   "for Windows only",
	"windowsRunAsService":         "for Windows only",
	"portRange":                   "kube-proxy ignores it too",
}

// keysOfIPTables are the keys of the iptables section that count only while the
// mode is empty (adoptSections).
var keysOfIPTables = []string{"iptables.masqueradeBit", "iptables.masqueradeAll", "iptables.syncPeriod", "iptables.minSyncPeriod"}

// keyWarnings names the keys that a file sets and that mean nothing here. k is
// as decoded, before defaults: a zero value counts as not set, and so does a
// default, which a file written by --write-config-to is full of.
func keyWarnings(k *kubeproxyconfig.KubeProxyConfiguration) []string {
	var defaults kubeproxyconfig.KubeProxyConfiguration
	setDefaults(&defaults)
	var out []string
	for _, key := range setKeys(reflect.ValueOf(*k), reflect.ValueOf(defaults), "") {
		reason, section := keysWithoutMeaning[key], key[:max(strings.IndexByte(key, '.'), 0)]
		if reason == "" {
			reason = keysWithoutMeaning[section]
		}
		if k.Mode != "" && slices.Contains(keysOfIPTables, key) {
			reason = "set the key of the nftables section instead"
		}
		if reason != "" {
			out = append(out, fmt.Sprintf("KubeProxyConfiguration: %s has no effect: %s", key, reason))
		}
	}
	return out
}

// setKeys lists the keys with a value that is not the default, as dotted JSON
// names.
func setKeys(v, defaults reflect.Value, prefix string) []string {
	var out []string
	for i := range v.NumField() {
		name := jsonName(v.Type().Field(i))
		field := v.Field(i)
		switch {
		case field.IsZero() || name == "" || reflect.DeepEqual(field.Interface(), defaults.Field(i).Interface()):
		case field.Kind() == reflect.Struct && !isLeaf(field.Type()):
			out = append(out, setKeys(field, defaults.Field(i), prefix+name+".")...)
		default:
			out = append(out, prefix+name)
		}
	}
	return out
}

// isLeaf reports whether a struct is written as one value: those of metav1 and
// those that say so by UnmarshalJSON. Logging's own keys are component-base's.
func isLeaf(t reflect.Type) bool {
	_, unmarshals := reflect.PointerTo(t).MethodByName("UnmarshalJSON")
	return unmarshals
}

// jsonName is a field's name in a file; empty for what is inlined (TypeMeta).
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
