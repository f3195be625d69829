// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// API is a control plane as a Net sees it: at the switch, https://172.18.0.1:6443. Connections are relayed by this process
// into the control plane's namespace, so that several Nets with equal addresses can share one control plane, and so that a
// test can cut a Net off from it.
type API struct {
	ControlPlane *ControlPlane
	// Kubeconfig is the path of one for the user system:kube-proxy.
	Kubeconfig string

	received  atomic.Int64
	listeners []net.Listener
	mu        sync.Mutex
	cut       bool
	conns     map[net.Conn]struct{}
}

// Attach makes the control plane reachable in the network, until the network is closed.
func (n *Net) Attach(cp *ControlPlane) (*API, error) {
	a := &API{
		ControlPlane: cp,
		Kubeconfig:   filepath.Join(n.dir, "kube-proxy.kubeconfig"),
		conns:        map[net.Conn]struct{}{},
	}
	if err := cp.WriteKubeconfig(a.Kubeconfig, a.URL(IPv4), "system:kube-proxy"); err != nil {
		return nil, err
	}
	n.onClose(a.close)
	for _, f := range Families() {
		err := n.Switch.Do(func() error {
			l, err := net.Listen(f.network(TCP), n.Switch.At(f, apiPort).String())
			if err == nil {
				a.listeners = append(a.listeners, l)
				go a.accept(l)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("attach control plane over %s: %w", f, err)
		}
	}
	return a, nil
}

// URL is the API server's address in the network.
func (a *API) URL(f Family) string {
	return "https://" + net.JoinHostPort(GatewayIP(f).String(), fmt.Sprint(apiPort))
}

// Received is how many bytes the API server has sent into the network, as they were encrypted.
func (a *API) Received() int64 { return a.received.Load() }

// counted counts what is written.
type counted struct {
	net.Conn
	n *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// Cut breaks all connections to the API server and resets new ones, until Restore.
func (a *API) Cut() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cut = true
	for c := range a.conns {
		reset(c)
	}
}

// Restore undoes Cut.
func (a *API) Restore() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cut = false
}

func (a *API) close() {
	for _, l := range a.listeners {
		l.Close()
	}
	a.Cut()
}

func (a *API) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed
		}
		go a.relay(c)
	}
}

// relay joins a connection to one of its own to the API server.
func (a *API) relay(down net.Conn) {
	if !a.track(down) {
		return
	}
	defer a.untrack(down)
	up, err := a.ControlPlane.Dial(context.Background())
	if err != nil {
		reset(down)
		return
	}
	if !a.track(up) {
		return
	}
	defer a.untrack(up)
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{up, down}, {down, up}} {
		both.Go(func() {
			var to io.Writer = way[0]
			if way[0] == down {
				to = counted{down, &a.received}
			}
			io.Copy(to, way[1])
			way[0].(*net.TCPConn).CloseWrite()
		})
	}
	both.Wait()
}

// track remembers a connection for Cut. It closes the connection and returns false while cut.
func (a *API) track(c net.Conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cut {
		reset(c)
		return false
	}
	a.conns[c] = struct{}{}
	return true
}

func (a *API) untrack(c net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.conns, c)
	c.Close()
}

// WriteKubeconfig writes a kubeconfig for a user with a certificate of its own.
func (cp *ControlPlane) WriteKubeconfig(path, server, user string, groups ...string) error {
	client, err := cp.ca.Client(user, groups...)
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["lab"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: cp.ca.PEM}
	config.AuthInfos["user"] = &clientcmdapi.AuthInfo{ClientCertificateData: client.Cert, ClientKeyData: client.Key}
	config.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab", AuthInfo: "user"}
	config.CurrentContext = "lab"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", user, err)
	}
	return nil
}
