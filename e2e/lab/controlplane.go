// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// apiPort is where the API server listens: on 127.0.0.1 of its namespace, and by a relay on the gateway of a Net.
const apiPort = 6443

// ControlPlaneOptions says how the API server is run.
type ControlPlaneOptions struct {
	// RBAC turns authorization on, with the roles that Kubernetes ships. Otherwise every known user may do everything.
	RBAC bool
	// Flags are added to kube-apiserver's.
	Flags []string
	// Timeout is for everything up to the API server being ready; 0 is a minute.
	Timeout time.Duration
}

// ControlPlane is a real etcd and kube-apiserver in a namespace of their own. There is no controller manager: nobody makes
// EndpointSlices, and a deleted Namespace object stays. Safe for concurrent use.
type ControlPlane struct {
	Client kubernetes.Interface // as system:masters, without a rate limit
	Config *rest.Config         // dials inside the namespace
	Etcd   *Process
	Server *Process

	host     *Host
	dir      string
	ca       *Authority
	launcher *launcher
}

// StartControlPlane starts one and waits until it serves, with namespace default, the Service kubernetes and the service
// CIDRs in place. The caller closes it. It takes about 5 s on 2 cores: share one per test binary (see Shared).
func StartControlPlane(ctx context.Context, o ControlPlaneOptions) (*ControlPlane, error) {
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "nftproxy-control-plane-")
	if err != nil {
		return nil, fmt.Errorf("control plane: %w", err)
	}
	cp := &ControlPlane{dir: dir, launcher: newLauncher()}
	for _, step := range []func() error{
		func() (err error) { cp.host, err = newHost(nil, "control-plane"); return err },
		func() (err error) { cp.ca, err = NewAuthority(); return err },
		cp.connect,
		cp.startEtcd,
		func() error { return cp.startServer(o) },
		func() error { return cp.ready(ctx) },
	} {
		if err := step(); err != nil {
			cp.Close()
			return nil, fmt.Errorf("control plane: %w", err)
		}
	}
	return cp, nil
}

// Close kills both processes and removes their data.
func (cp *ControlPlane) Close() {
	for _, p := range []*Process{cp.Server, cp.Etcd} {
		if p != nil {
			p.Kill()
		}
	}
	cp.launcher.close()
	if cp.host != nil {
		cp.host.close()
	}
	os.RemoveAll(cp.dir)
}

// Dial connects to the API server from wherever the caller is.
func (cp *ControlPlane) Dial(ctx context.Context) (net.Conn, error) {
	var c net.Conn
	err := cp.host.Do(func() (err error) {
		var d net.Dialer
		c, err = d.DialContext(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", apiPort))
		return err
	})
	return c, err
}

// connect makes the client. Nothing is dialed yet.
func (cp *ControlPlane) connect() error {
	admin, err := cp.ca.Client("admin", "system:masters")
	if err != nil {
		return err
	}
	cp.Config = &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", apiPort),
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return cp.Dial(ctx) },
		QPS:  -1,
		// Tests use what is deprecated; the server says so at each write.
		WarningHandler: rest.NoWarnings{},
		ContentConfig: rest.ContentConfig{
			ContentType:        "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
		TLSClientConfig: rest.TLSClientConfig{CAData: cp.ca.PEM, CertData: admin.Cert, KeyData: admin.Key},
	}
	cp.Client, err = kubernetes.NewForConfig(cp.Config)
	return err
}

func (cp *ControlPlane) startEtcd() error {
	bin, err := Peer("etcd")
	if err != nil {
		return err
	}
	const peerURL = "http://127.0.0.1:2380"
	cp.Etcd, err = cp.launcher.spawn(cp.host.Namespace, "etcd", filepath.Join(cp.dir, "etcd.log"), nil, bin,
		"--data-dir="+filepath.Join(cp.dir, "etcd"),
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL, "--initial-cluster=default="+peerURL,
		"--unsafe-no-fsync", // the data dies with the test
		// A single member elects itself after the election timeout, 1 s by default; at least 5 heartbeats are required.
		"--heartbeat-interval=10", "--election-timeout=100",
		"--log-level=warn")
	return err
}

const etcdURL = "http://127.0.0.1:2379"

func (cp *ControlPlane) startServer(o ControlPlaneOptions) error {
	bin, err := Peer("kube-apiserver")
	if err != nil {
		return err
	}
	cert, err := cp.ca.Server("kube-apiserver", apiNames(), apiAddrs())
	if err != nil {
		return err
	}
	file := func(name string) string { return filepath.Join(cp.dir, name) }
	for name, text := range map[string][]byte{"ca.crt": cp.ca.PEM, "server.crt": cert.Cert, "server.key": cert.Key} {
		if err := os.WriteFile(file(name), text, 0o600); err != nil {
			return err
		}
	}
	mode := "AlwaysAllow"
	if o.RBAC {
		mode = "RBAC"
	}
	argv := []string{
		bin,
		"--etcd-servers=" + etcdURL,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", apiPort),
		// What the Service kubernetes leads to: the relay of each Net.
		"--advertise-address=" + GatewayIP(IPv4).String(),
		"--tls-cert-file=" + file("server.crt"), "--tls-private-key-file=" + file("server.key"),
		"--client-ca-file=" + file("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + file("server.key"), "--service-account-signing-key-file=" + file("server.key"),
		"--service-cluster-ip-range=" + ServiceCIDR(IPv4).String() + "," + ServiceCIDR(IPv6).String(),
		"--authorization-mode=" + mode,
		"--allow-privileged",
		"--disable-admission-plugins=ServiceAccount",                                                              // there is no controller that makes them
		"--enable-priority-and-fairness=false", "--max-requests-inflight=0", "--max-mutating-requests-inflight=0", // bulk writers
	}
	cp.Server, err = cp.launcher.spawn(cp.host.Namespace, "kube-apiserver", file("kube-apiserver.log"), nil,
		append(argv, o.Flags...)...)
	return err
}

// ready waits for the server, and for the objects it makes after its start that others rely on.
func (cp *ControlPlane) ready(ctx context.Context) error {
	checks := map[string]func() error{
		"readyz": func() error {
			return cp.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		},
		"namespace default": func() error {
			_, err := cp.Client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
			return err
		},
		"service kubernetes": func() error {
			_, err := cp.Client.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
			return err
		},
		"service CIDRs": func() error {
			_, err := cp.Client.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{})
			return err
		},
	}
	for len(checks) > 0 {
		for what, check := range checks {
			err := check()
			if err == nil {
				delete(checks, what)
				continue
			}
			if ended := errors.Join(cp.Etcd.alive(), cp.Server.alive()); ended != nil {
				return ended
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("wait for %s: %w (%w); the end of the log:\n%s", what, err, ctx.Err(), cp.Server.Tail(tailLines))
			case <-time.After(20 * time.Millisecond): // polled: the server sends no signal
			}
		}
	}
	return nil
}

// Kubectl runs kubectl as system:masters and returns its standard output.
func (cp *ControlPlane) Kubectl(args ...string) (string, error) {
	bin, err := Peer("kubectl")
	if err != nil {
		return "", err
	}
	config := filepath.Join(cp.dir, "admin.kubeconfig")
	if err := cp.WriteKubeconfig(config, cp.Config.Host, "admin", "system:masters"); err != nil {
		return "", err
	}
	return cp.launcher.run(cp.host, nil, append([]string{bin, "--kubeconfig=" + config}, args...)...)
}

// Shared is a control plane for all tests of a package: a variable of the test package, closed in TestMain.
//
//	var shared lab.Shared
//	func TestMain(m *testing.M) { code := m.Run(); shared.Close(); os.Exit(code) }
//	func TestX(t *testing.T) { cp := shared.ControlPlane(t); ... }
type Shared struct {
	Options ControlPlaneOptions

	once sync.Once
	cp   *ControlPlane
	err  error
}

// ControlPlane starts the control plane when it is first asked for, and empties it (ControlPlane.Reset) for each test.
func (s *Shared) ControlPlane(t testing.TB) *ControlPlane {
	t.Helper()
	RequireRoot(t)
	s.once.Do(func() { s.cp, s.err = StartControlPlane(context.Background(), s.Options) })
	if s.err != nil {
		t.Fatal(s.err)
	}
	if err := s.cp.Reset(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s.cp
}

// Close ends the control plane if there is one.
func (s *Shared) Close() {
	if s.cp != nil {
		s.cp.Close()
	}
}
