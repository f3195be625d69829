// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

// keyspace is how a frontend is looked up: by VIP, or by NodePort alone.
type keyspace struct {
	nodePort                bool
	endpoints, toID, fromID SetID
}

func keyspaceOf(k Kind) keyspace {
	if k.IsNodePort() {
		return keyspace{true, NodePortEndpoints, NodePortEndpointIDs, NodePortEndpointsByID}
	}
	return keyspace{false, Endpoints, EndpointIDs, EndpointsByID}
}

// slotKey is the key of an endpoint: what is addressed, and the slot or id in the priority.
func (k keyspace) slotKey(l lang) []load {
	if k.nodePort {
		return append(port(), priority())
	}
	return append(l.vip(), priority())
}

// BalancerChain returns the chain of a balancer, KindCluster or the like: draw a slot and go to its endpoint.
// Slot 0 is the way out for a packet that a commit overtook.
func BalancerChain(f Family, p Program) Chain {
	l, ks, v := lang{f}, keyspaceOf(p.Kind()), p.Kind().View()
	draw := Rule{"", all(random(v, p.Arg()), l.dnat(ks.endpoints.String(), ks.slotKey(l)))}
	c := Chain{Name: p.Chain()}
	for range draws(p.Arg()) {
		c.Rules = append(c.Rules, draw)
	}
	c.Rules = append(c.Rules, Rule{"slot gone meanwhile", all(slot(v, 0), l.dnat(ks.endpoints.String(), ks.slotKey(l)))})
	return c
}

// Balancers returns the balancers that a Service's programs name, with repetitions.
func (s *Service) Balancers() []Program {
	var out []Program
	for i := range s.Frontends {
		f := &s.Frontends[i]
		for _, v := range f.views() {
			if len(s.endpoints(v)) > 0 {
				if p := s.balancer(f, v); !p.Kind().IsAffinity() {
					out = append(out, p)
				}
			}
		}
	}
	return out
}
