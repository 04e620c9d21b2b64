package master

import (
	"sync"

	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

// rules are how sandboxes are placed. They are immutable but for what they
// count: a create keeps those that it began with.
type rules struct {
	placer   *scheduler.Scheduler
	retry    *scheduler.RetryPolicy
	affinity *scheduler.AffinityPolicy
	breakers *scheduler.Breakers
	budget   *budget
}

// budget is a retry budget that all creates of a master share.
type budget struct {
	mu sync.Mutex
	*scheduler.RetryBudget
}

func newRules(c config.Master) (*rules, error) {
	s := scheduler.DefaultConfig()
	s.StaleAfter = c.HostStaleAfter
	placer, err := scheduler.New(s)
	if err != nil {
		return nil, err
	}
	retry, err := scheduler.NewRetryPolicy(scheduler.DefaultRetryConfig())
	if err != nil {
		return nil, err
	}
	affinity, err := scheduler.NewAffinityPolicy(scheduler.AffinityConfig{})
	if err != nil {
		return nil, err
	}
	breakers, err := scheduler.NewBreakers(scheduler.DefaultBreakerConfig())
	if err != nil {
		return nil, err
	}
	return &rules{placer, retry, affinity, breakers, &budget{RetryBudget: retry.Budget()}}, nil
}
