// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"
)

// The part of SPDX 2.3 that is written (https://spdx.github.io/spdx-spec/v2.3/).
type (
	spdxDocument struct {
		Version       string             `json:"spdxVersion"`
		DataLicense   string             `json:"dataLicense"`
		ID            string             `json:"SPDXID"`
		Name          string             `json:"name"`
		Namespace     string             `json:"documentNamespace"`
		Creation      spdxCreation       `json:"creationInfo"`
		Packages      []spdxPackage      `json:"packages"`
		Relationships []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		ID        string         `json:"SPDXID"`
		Name      string         `json:"name"`
		Version   string         `json:"versionInfo"`
		Download  string         `json:"downloadLocation"`
		Analyzed  bool           `json:"filesAnalyzed"`
		Concluded string         `json:"licenseConcluded"`
		Declared  string         `json:"licenseDeclared"`
		Copyright string         `json:"copyrightText"`
		Checksums []spdxChecksum `json:"checksums,omitempty"`
		Refs      []spdxRef      `json:"externalRefs"`
		Comment   string         `json:"comment,omitempty"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxRef struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

const noAssertion = "NOASSERTION"

// notInID are the characters that an SPDX identifier cannot have.
var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// sbom lists what the Go toolchain noted in a binary: its modules and the toolchain's own library.
func sbom(info *buildinfo.BuildInfo, version, arch string, binary []byte) ([]byte, error) {
	sum := fmt.Sprintf("%x", sha256.Sum256(binary))
	main := spdxPackageOf(info.Main.Path, version, "")
	main.Declared = "Apache-2.0"
	main.Checksums = []spdxChecksum{{"SHA256", sum}}
	doc := spdxDocument{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT",
		Name: "nftproxy-" + version + "-linux-" + arch,
		// Has to be unique; the binary's own sum is, and is the same each time.
		Namespace:     "https://" + info.Main.Path + "/spdx/" + sum,
		Creation:      spdxCreation{Created: "1970-01-01T00:00:00Z", Creators: []string{"Tool: nftproxy-make-image"}},
		Packages:      []spdxPackage{main},
		Relationships: []spdxRelationship{{"SPDXRef-DOCUMENT", "DESCRIBES", main.ID}},
	}
	for _, m := range append(used(info.Deps), &debug.Module{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}) {
		p := spdxPackageOf(m.Path, m.Version, m.Sum)
		doc.Packages = append(doc.Packages, p)
		doc.Relationships = append(doc.Relationships, spdxRelationship{main.ID, "DEPENDS_ON", p.ID})
	}
	text, err := json.MarshalIndent(doc, "", " ")
	return append(text, '\n'), err
}

// used are the modules as they were compiled, replaced ones by what replaces them.
func used(deps []*debug.Module) (out []*debug.Module) {
	for _, m := range deps {
		if m.Replace != nil {
			m = m.Replace
		}
		out = append(out, m)
	}
	return out
}

func spdxPackageOf(path, version, sum string) spdxPackage {
	p := spdxPackage{
		ID: "SPDXRef-" + notInID.ReplaceAllString(path+"-"+version, "-"), Name: path, Version: version,
		Download: noAssertion, Concluded: noAssertion, Declared: noAssertion, Copyright: noAssertion,
		Refs: []spdxRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + path + "@" + version}},
	}
	if sum != "" {
		p.Comment = "go.sum: " + sum // of the module's files; SPDX knows no such checksum
	}
	return p
}
