package master

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/scheduler"
)

// gauges are what is looked up when somebody asks for it.
type gauges struct {
	m                 *Master
	charges, breakers *prometheus.Desc
}

func (m *Master) gauges() *gauges {
	return &gauges{
		m:        m,
		charges:  prometheus.NewDesc("paddock_scheduler_ledger_charges", "Choices of this master that no host's report shows yet.", nil, nil),
		breakers: prometheus.NewDesc("paddock_scheduler_breakers", "Hosts by the state of their breaker, of those that are not closed.", []string{"state"}, nil),
	}
}

// Describe names the gauges.
func (g *gauges) Describe(to chan<- *prometheus.Desc) {
	to <- g.charges
	to <- g.breakers
}

// Collect reads them.
func (g *gauges) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.MustNewConstMetric(g.charges, prometheus.GaugeValue, float64(g.m.fleet.ledger.Len()))
	var states map[scheduler.BreakerState]int
	if now, ok := g.m.fleet.time(); ok {
		states = g.m.rules.Load().breakers.States(now)
	}
	for _, s := range []scheduler.BreakerState{scheduler.BreakerOpen, scheduler.BreakerHalfOpen} {
		to <- prometheus.MustNewConstMetric(g.breakers, prometheus.GaugeValue, float64(states[s]), string(s))
	}
}

// time is the database's time, as far as the last look tells, if there was one.
func (f *fleet) time() (now time.Time, ok bool) {
	f.seen.RLock()
	defer f.seen.RUnlock()
	if f.view == nil {
		return now, false
	}
	return f.clock(), true
}
