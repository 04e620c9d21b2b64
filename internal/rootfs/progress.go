package rootfs

import (
	"sync"

	"github.com/paddock-dev/paddock/internal/template"
)

// Event is how far a build is. The counts are of layers as they travel.
type Event struct {
	Phase                   template.Phase
	TotalBytes, DoneBytes   int64
	TotalLayers, DoneLayers int
}

// progress tells how far a build is. It never goes back.
type progress struct {
	mu    sync.Mutex
	tell  func(Event)
	event Event
}

// order of the phases of a build. Layers are laid over each other while they
// arrive, so unpacking is what is left to do when all have arrived.
var order = map[template.Phase]int{template.PhasePulling: 1, template.PhaseUnpacking: 2, template.PhaseBuildingExt4: 3}

func (p *progress) total(bytes int64, layers int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.event.TotalBytes, p.event.TotalLayers = bytes, layers
}

// arrived notes what has come of the layers.
func (p *progress) arrived(bytes int64, layers int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.event.DoneBytes, p.event.DoneLayers = bytes, layers
	if p.event.Phase != template.PhasePulling {
		return
	}
	p.send()
	if layers == p.event.TotalLayers {
		p.to(template.PhaseUnpacking)
	}
}

// enter begins a phase, with those before it that were not told of.
func (p *progress) enter(phase template.Phase) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to(phase)
	if all := p.event.TotalLayers; phase == template.PhasePulling && p.event.DoneLayers == all && p.event.Phase == phase {
		p.to(template.PhaseUnpacking)
	}
}

func (p *progress) to(phase template.Phase) {
	for _, one := range []template.Phase{template.PhasePulling, template.PhaseUnpacking, template.PhaseBuildingExt4} {
		if order[one] <= order[phase] && order[one] > order[p.event.Phase] {
			p.event.Phase = one
			p.send()
		}
	}
}

func (p *progress) send() {
	if p.tell != nil {
		p.tell(p.event)
	}
}
