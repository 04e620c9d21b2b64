package scheduler

import (
	"maps"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/host"
)

// View is the fleet as the scheduler sees it at one moment. It is immutable:
// a newer fleet is a new View, which shares all that did not change.
//
// A host stands in one lane of one page, and stays there as long as it is in
// the fleet. Whatever hosts have in common (type, artifact, label) is a set of
// lanes.
type View struct {
	gen     uint64
	pages   []*page
	roster  *roster
	tags    pmap[tag, *set]
	domains pmap[string, *domain]
	builtAt time.Time
	oldest  [4]int64 // the least of the pages' times
}

// roster says who is in the fleet, and in which lane. Two views of one roster
// number their hosts alike.
type roster struct {
	index pmap[host.ID, int32]
	spare []int32 // lanes of hosts that left
	lanes int32
	hosts int
}

type tagKind uint8

const (
	tagType tagKind = iota
	tagArtifact
	tagLabel // key and value
	tagKey   // has the label, whatever its value
)

// tag is something that hosts have in common.
type tag struct {
	kind       tagKind
	key, value string
}

// set is the lanes that have a tag: one word a page.
type set struct {
	gen   uint64
	words []uint64
	n     int
}

func (s *set) word(page int) uint64 {
	if s == nil || page >= len(s.words) {
		return 0
	}
	return s.words[page]
}

// maxDomains is how many values a label may have to be spread over.
const maxDomains = 128

// domain is the values of one label, sorted; nil if there are too many.
type domain struct {
	gen    uint64
	values []string
	over   bool
}

// NewView returns the view of hosts as known at now, a time of the database's
// clock. It takes over what the hosts point to.
func NewView(hosts []host.Facts, now time.Time) *View {
	sorted := slices.Clone(hosts)
	slices.SortStableFunc(sorted, func(a, b host.Facts) int { return strings.Compare(string(a.ID), string(b.ID)) })
	empty := &View{roster: &roster{}}
	return empty.With(now, sorted)
}

// With returns the view at now in which the given hosts are new or changed and
// others are gone. It copies the pages and sets that they touch and shares the
// rest; v stays as it is. A host whose Revision is below the known one keeps
// its known status: the report was overtaken on its way.
func (v *View) With(now time.Time, changed []host.Facts, gone ...host.ID) *View {
	b := builder{View: &View{gen: v.gen + 1, pages: slices.Clone(v.pages), roster: v.roster, builtAt: now}, tags: v.tags.write(), domains: v.domains.write()}
	for _, id := range gone {
		b.remove(id)
	}
	for i := range changed {
		h := changed[i]
		b.put(&h)
	}
	for _, p := range b.touched {
		p.seal()
	}
	for i := range b.oldest {
		b.oldest[i] = math.MaxInt64
		for _, p := range b.pages {
			b.oldest[i] = min(b.oldest[i], p.oldest[i])
		}
	}
	b.View.tags, b.View.domains = *b.tags.pmap, *b.domains.pmap
	if b.index.pmap != nil {
		b.roster.index = *b.index.pmap
	}
	return b.View
}

// Become returns the view at now of exactly these hosts. It costs less than a
// new view, and hosts keep their lanes, so that nothing that is known by lane is
// lost.
func (v *View) Become(now time.Time, hosts []host.Facts) *View {
	in := make(map[host.ID]bool, len(hosts))
	for i := range hosts {
		in[hosts[i].ID] = true
	}
	var gone []host.ID
	for _, p := range v.pages {
		for _, h := range p.facts {
			if h != nil && !in[h.ID] {
				gone = append(gone, h.ID)
			}
		}
	}
	return v.With(now, hosts, gone...)
}

// builder is a view while it is made.
type builder struct {
	*View
	tags    writer[tag, *set]
	domains writer[string, *domain]
	index   writer[host.ID, int32] // of a roster of its own, once membership changes
	touched []*page
}

// members makes the roster one that may be changed.
func (b *builder) members() *roster {
	if b.index.pmap == nil {
		own := *b.roster
		own.spare = slices.Clone(own.spare)
		b.index = own.index.write()
		b.roster = &own
	}
	return b.roster
}

func (b *builder) lane(id host.ID) (int32, bool) {
	if b.index.pmap != nil {
		return b.index.get(id)
	}
	return b.roster.index.get(id)
}

func (b *builder) page(n int32) *page {
	at := int(n / lanes)
	if at == len(b.pages) {
		b.pages = append(b.pages, &page{})
	}
	p := b.pages[at]
	if p.gen != b.gen {
		own := *p
		own.gen, own.serial = b.gen, serials.Add(1)
		p, b.pages[at] = &own, &own
		b.touched = append(b.touched, p)
	}
	return p
}

func (b *builder) put(h *host.Facts) {
	n, known := b.lane(h.ID)
	if !known {
		r := b.members()
		if k := len(r.spare); k > 0 {
			n, r.spare = r.spare[k-1], r.spare[:k-1]
		} else {
			n = r.lanes
			r.lanes++
		}
		r.hosts++
		b.index.set(h.ID, n)
	}
	p := b.page(n)
	old := p.facts[n%lanes]
	if old != nil && old.Usage.Revision > 0 && h.Usage.Revision > 0 && h.Usage.Revision < old.Usage.Revision {
		// What it holds of artifacts no truth tells: there the row is the newer.
		artifacts := h.Artifacts
		h.Status, h.Usage, h.HeardAt = old.Status, old.Usage, old.HeardAt
		h.Artifacts = artifacts
	}
	b.retag(n, old, h)
	p.put(int(n%lanes), h)
}

func (b *builder) remove(id host.ID) {
	n, known := b.lane(id)
	if !known {
		return
	}
	r := b.members()
	b.index.drop(id)
	r.spare = append(r.spare, n)
	r.hosts--
	p := b.page(n)
	b.retag(n, p.facts[n%lanes], nil)
	p.remove(int(n % lanes))
}

// retag moves lane n from the sets of old to those of h.
func (b *builder) retag(n int32, old, h *host.Facts) {
	if old != nil && h != nil && sameTags(old, h) {
		return
	}
	before := map[tag]bool{}
	if old != nil {
		for _, t := range tagsOf(old) {
			before[t] = true
		}
	}
	if h != nil {
		for _, t := range tagsOf(h) {
			if before[t] {
				delete(before, t)
			} else {
				b.mark(t, n, true)
			}
		}
	}
	for t := range before {
		b.mark(t, n, false)
	}
}

func (b *builder) mark(t tag, n int32, on bool) {
	s, _ := b.tags.get(t)
	if s == nil || s.gen != b.gen {
		own := &set{gen: b.gen}
		if s != nil {
			own.words, own.n = slices.Clone(s.words), s.n
		}
		s = own
		b.tags.set(t, s)
	}
	for int(n/lanes) >= len(s.words) {
		s.words = append(s.words, 0)
	}
	word, bit := &s.words[n/lanes], uint64(1)<<(n%lanes)
	if on == (*word&bit != 0) {
		return
	}
	*word ^= bit
	if on {
		s.n++
	} else {
		s.n--
	}
	if t.kind == tagLabel && (on && s.n == 1 || !on && s.n == 0) {
		b.domain(t, on)
	}
	if s.n == 0 {
		b.tags.drop(t)
	}
}

func (b *builder) domain(t tag, on bool) {
	d, _ := b.domains.get(t.key)
	if d == nil || d.gen != b.gen {
		own := &domain{gen: b.gen}
		if d != nil {
			own.values, own.over = slices.Clone(d.values), d.over
		}
		d = own
		b.domains.set(t.key, d)
	}
	at, has := slices.BinarySearch(d.values, t.value)
	switch {
	case d.over:
	case !on && has:
		d.values = slices.Delete(d.values, at, at+1)
	case on && len(d.values) == maxDomains:
		d.values, d.over = nil, true
	case on && !has:
		d.values = slices.Insert(d.values, at, t.value)
	}
}

// Labels that every host has, from its registration. A label of the same name
// that the host gives itself does not count.
const (
	LabelZone         = "topology.kubernetes.io/zone"
	LabelCluster      = "topology.kubernetes.io/cluster-id"
	LabelCPUType      = "kubernetes.io/cpu-type"
	LabelMemory       = "kubernetes.io/memory-size"
	LabelCores        = "kubernetes.io/cpu-cores"
	LabelInstanceType = "kubernetes.io/instance-type"
)

var builtInLabels = []string{LabelZone, LabelCluster, LabelCPUType, LabelMemory, LabelCores, LabelInstanceType}

func tagsOf(h *host.Facts) []tag {
	tags := make([]tag, 0, 2+2*len(builtInLabels)+2*len(h.Labels)+len(h.Artifacts))
	tags = append(tags, tag{kind: tagType, value: h.InstanceType})
	label := func(key, value string) {
		tags = append(tags, tag{tagLabel, key, value}, tag{kind: tagKey, key: key})
	}
	for _, own := range []struct{ key, value string }{
		{LabelZone, h.Zone},
		{LabelCluster, h.ClusterLabel},
		{LabelCPUType, h.Usage.CPUType},
		{LabelInstanceType, h.InstanceType},
		{LabelMemory, strconv.FormatInt(h.Allocatable.MemBytes>>20, 10) + "Mi"},
		{LabelCores, strconv.FormatInt(h.Allocatable.MilliCPU, 10) + "m"},
	} {
		if own.value != "" {
			label(own.key, own.value)
		}
	}
	for key, value := range h.Labels {
		if !slices.Contains(builtInLabels, key) {
			label(key, value)
		}
	}
	for _, a := range h.Artifacts {
		tags = append(tags, tag{kind: tagArtifact, value: a})
	}
	return tags
}

func sameTags(a, b *host.Facts) bool {
	return a.InstanceType == b.InstanceType && a.Zone == b.Zone && a.ClusterLabel == b.ClusterLabel && a.Usage.CPUType == b.Usage.CPUType &&
		a.Allocatable.MemBytes == b.Allocatable.MemBytes && a.Allocatable.MilliCPU == b.Allocatable.MilliCPU &&
		maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Artifacts, b.Artifacts)
}

// Len returns how many hosts are in the view.
func (v *View) Len() int { return v.roster.hosts }

// Host returns what is known of id.
func (v *View) Host(id host.ID) (host.Facts, bool) {
	n, ok := v.roster.index.get(id)
	if !ok {
		return host.Facts{}, false
	}
	return *v.at(n), true
}

// IDs returns who is in the view, in no order.
func (v *View) IDs() []host.ID {
	ids := make([]host.ID, 0, v.Len())
	for _, p := range v.pages {
		for _, h := range p.facts {
			if h != nil {
				ids = append(ids, h.ID)
			}
		}
	}
	return ids
}

// Hosts returns what is known of all, by id.
func (v *View) Hosts() []host.Facts {
	all := make([]host.Facts, 0, v.Len())
	for _, p := range v.pages {
		for m := p.live; m != 0; m &= m - 1 {
			all = append(all, *p.facts[bits.TrailingZeros64(m)])
		}
	}
	slices.SortFunc(all, func(a, b host.Facts) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return all
}

func (v *View) at(n int32) *host.Facts { return v.pages[n/lanes].facts[n%lanes] }

// BuiltAt returns the moment that the view shows.
func (v *View) BuiltAt() time.Time { return v.builtAt }

// Serves reports whether a host is of an instance type.
func (v *View) Serves(kind string) bool {
	_, ok := v.tags.get(tag{kind: tagType, value: kind})
	return ok
}

// Holders returns how many hosts hold an artifact.
func (v *View) Holders(artifact string) int {
	s, _ := v.tags.get(tag{kind: tagArtifact, value: artifact})
	if s == nil {
		return 0
	}
	return s.n
}
