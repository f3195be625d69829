// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"time"
)

// Authority is a certificate authority that lives as long as a test; what it signs is good for a day. Safe for concurrent
// use.
type Authority struct {
	PEM  []byte // its certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// KeyPair is a certificate with its key, in PEM.
type KeyPair struct{ Cert, Key []byte }

// NewAuthority makes an authority with a key of its own (ECDSA, P-256).
func NewAuthority() (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	template := certificate("nftproxy-lab")
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	return &Authority{block("CERTIFICATE", der), cert, key}, nil
}

// Own is the authority's own certificate with its key, for a component that signs in its name.
func (a *Authority) Own() (KeyPair, error) {
	k, err := x509.MarshalECPrivateKey(a.key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("key of the certificate authority: %w", err)
	}
	return KeyPair{a.PEM, block("EC PRIVATE KEY", k)}, nil
}

// apiNames and apiAddrs are what the API server of the lab is reached at.
func apiNames() []string {
	return []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
}

func apiAddrs() []netip.Addr {
	addrs := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	for _, f := range Families() {
		addrs = append(addrs, GatewayIP(f), ClusterIP(f, 1))
	}
	return addrs
}

// Server makes the certificate of a server for the names and addresses that it is reached at.
func (a *Authority) Server(name string, names []string, addrs []netip.Addr, groups ...string) (KeyPair, error) {
	template := certificate(name)
	template.Subject.Organization = groups
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames = names
	for _, addr := range addrs {
		template.IPAddresses = append(template.IPAddresses, addr.AsSlice())
	}
	return a.sign(template)
}

// Client makes the certificate of a user: the API server takes name and groups from the subject.
func (a *Authority) Client(user string, groups ...string) (KeyPair, error) {
	template := certificate(user)
	template.Subject.Organization = groups
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(template)
}

func (a *Authority) sign(template *x509.Certificate) (KeyPair, error) {
	name := template.Subject.CommonName
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("key of %s: %w", name, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("certificate of %s: %w", name, err)
	}
	k, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("key of %s: %w", name, err)
	}
	return KeyPair{block("CERTIFICATE", der), block("EC PRIVATE KEY", k)}, nil
}

func certificate(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62)) // crypto/rand does not fail since Go 1.24
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
