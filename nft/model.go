// Copyright 2026 The nftproxy Authors
// SPDX-License-Identifier: Apache-2.0

package nft

// Model returns what the kernel holds once a table was made of these Services, whose slots and affinity numbers
// must be assigned, and of the node's elements: for tests, and for whoever wants to know before.
func Model(f Family, cfg Config, services []*Service, node []Element) *Snapshot {
	s := &Snapshot{
		Content: NewContent(f),
		Rules:   map[string][]Rule{},
		Steady:  true,
	}
	s.Exists, s.Elements = true, wantedElements(services, node)
	for _, spec := range staticSets() {
		s.Sets[spec.name] = spec.content(f)
	}
	chains := Skeleton(f, cfg)
	for _, p := range policies() {
		s.Policies[p] = true
	}
	for _, p := range wantedBalancers(s.Content, services) {
		s.Programs[p] = true
		chains = append(chains, BalancerChain(f, p))
	}
	for _, p := range wantedDraws(s.Content, services) {
		s.Draws[p] = true
		chains = append(chains, DrawChain(f, p))
	}
	for _, service := range services {
		for _, a := range service.Affinities() {
			chains = append(chains, a.Chains(f)...)
			spec := affinitySpec(a)
			s.Sets[spec.name] = spec.content(f)
			for _, p := range a.programs() {
				s.Programs[p] = true
			}
		}
	}
	for i := range chains {
		s.Rules[chains[i].Name] = chains[i].Rules
		s.Chains[chains[i].Name] = ChainContent{Hook: chains[i].Hook, Rules: fingerprints(f, &chains[i])}
	}
	return s
}

// content is the declaration as the kernel returns it.
func (s *setSpec) content(f Family) SetContent {
	c := SetContent{Flags: s.flags(), Size: s.size, Counting: s.counting, Comment: s.comment}
	if s.dynamic && c.Size == 0 {
		c.Size = dynsetSize
	}
	c.KeyType, c.KeyLen = concat(f, s.key)
	if s.isMap() {
		c.DataType, c.DataLen = concat(f, s.data)
	}
	return c
}

// dynsetSize is what the kernel bounds a set with that the data path writes, when nobody said (nft_dynset_init).
const dynsetSize = 0xffff
