package master

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// routeKey begins the key of a sandbox's route: a hash with HostIP, CreatedAt in
// nanoseconds, SandboxIP, and for each port that is exposed the port of the host
// that leads to it. A host gives its sandboxes an address each and no port of
// its own, so that the two are one.
const routeKey = "bypass_host_proxy:"

const (
	routeTime = 2 * time.Second // of one call of Redis
	routePage = 500
)

// routing writes routes into a Redis, for those who bring requests to sandboxes.
// The rows are what is true: a Redis that was away is told later.
type routing struct{ *redis.Client }

func newRouting(c config.Redis) *routing {
	return &routing{redis.NewClient(&redis.Options{
		Addr: c.Addr, Password: c.Password.Reveal(),
		DialTimeout: routeTime, ReadTimeout: routeTime, WriteTimeout: routeTime, PoolTimeout: routeTime,
		MaxRetries: -1, ContextTimeoutEnabled: true, PoolSize: 8,
	})}
}

// routed are the states in which a sandbox has a route.
var routed = []sandbox.State{sandbox.Running, sandbox.Pausing, sandbox.Paused, sandbox.Resuming, sandbox.RollingBack}

func isRouted(s sandbox.State) bool {
	return slices.Contains(routed, s)
}

// routeChanged has a sandbox's route looked at once tx is committed.
func (m *Master) routeChanged(ctx context.Context, tx *store.Tx, id sandbox.ID) error {
	if m.routing == nil {
		return nil
	}
	return tx.Enqueue(ctx, store.Message{Topic: topicRoute, Key: string(id), Trace: traceOf(ctx)}, 0)
}

// route makes the route of a sandbox what its row says now. So a message that
// comes twice or late does no harm.
func (m *Master) route(ctx context.Context, msg store.Message) error {
	id := sandbox.ID(msg.Key)
	var fields map[string]string
	err := m.db.View(ctx, func(tx *store.Tx) error {
		fields = nil
		s, err := sandboxdb.GetSandbox(ctx, tx, id)
		if errors.Is(err, fault.SandboxNotFound) || err == nil && !isRouted(s.State) {
			return nil
		}
		if err == nil {
			fields, err = routeOf(ctx, tx, s, map[template.ID]kept{})
		}
		return err
	})
	if err != nil {
		return err
	}
	return m.routing.put(ctx, id, fields)
}

// routeOf returns the fields of a sandbox's route; nil when its host is in no
// book.
func routeOf(ctx context.Context, tx *store.Tx, s sandbox.Sandbox, known map[template.ID]kept) (map[string]string, error) {
	f, err := sandboxdb.GetHost(ctx, tx, s.HostID)
	if errors.Is(err, fault.HostUnknown) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	k, ok := known[s.TemplateID]
	if !ok {
		d, err := templatedb.GetDefinition(ctx, tx, s.TemplateID)
		if err == nil {
			k, err = keptOf(d.Request)
		}
		if err != nil && !errors.Is(err, fault.TemplateNotFound) {
			return nil, err
		}
		known[s.TemplateID] = k
	}
	var asked cubeapi.SandboxCreateRequest
	if err := json.Unmarshal(s.Request, &asked); err != nil {
		return nil, fault.Wrap(fault.Bug, err, "stored request of sandbox %s", s.ID)
	}
	all := asked.Annotations
	if k.Overrides != nil {
		all = annotations(all, k.Overrides.Annotations)
	}
	ports, err := portsFor(k, all)
	if err != nil {
		return nil, err
	}
	fields := map[string]string{"HostIP": f.IP, "CreatedAt": strconv.FormatInt(s.CreatedAt.UnixNano(), 10), "SandboxIP": s.IP}
	for _, p := range ports {
		n := strconv.Itoa(int(p))
		fields[n] = n
	}
	return fields, nil
}

// put writes a route, or removes it when there are no fields.
func (r *routing) put(ctx context.Context, id sandbox.ID, fields map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, routeTime)
	defer cancel()
	_, err := r.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Del(ctx, routeKey+string(id))
		if len(fields) > 0 {
			p.HSet(ctx, routeKey+string(id), fields)
		}
		return nil
	})
	return routeAway(err)
}

func routeAway(err error) error {
	if err == nil {
		return nil
	}
	return fault.Wrap(fault.PeerUnavailable, err, "routes in Redis")
}

// sweepRoutes holds all routes against the rows, now and then: a message may
// have been given up, and a Redis may have lost what it had.
func (m *Master) sweepRoutes(ctx context.Context) error {
	m.mu.Lock()
	due := m.routing != nil && time.Since(m.rerouted) >= m.pace.routes
	m.mu.Unlock()
	if !due {
		return nil
	}
	var rows []sandboxdb.Placed
	var hosts []host.Facts
	err := m.db.View(ctx, func(tx *store.Tx) (err error) {
		if hosts, err = sandboxdb.ListHosts(ctx, tx); err != nil {
			return err
		}
		rows, err = sandboxdb.ListPlaced(ctx, tx, routed)
		return err
	})
	if err != nil {
		return err
	}
	ips := map[host.ID]string{}
	for _, f := range hosts {
		ips[f.ID] = f.IP
	}
	errs := []error{m.dropRoutes(ctx, rows)}
	for len(rows) > 0 {
		n := min(len(rows), routePage)
		errs = append(errs, m.checkRoutes(ctx, rows[:n], ips))
		rows = rows[n:]
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	m.mu.Lock()
	m.rerouted = time.Now()
	m.mu.Unlock()
	return nil
}

// checkRoutes writes the routes that are not there, or lead elsewhere.
func (m *Master) checkRoutes(ctx context.Context, rows []sandboxdb.Placed, ips map[host.ID]string) error {
	bounded, cancel := context.WithTimeout(ctx, routeTime)
	defer cancel()
	found := make([]*redis.SliceCmd, len(rows))
	_, err := m.routing.Pipelined(bounded, func(p redis.Pipeliner) error {
		for i, s := range rows {
			found[i] = p.HMGet(bounded, routeKey+string(s.ID), "HostIP", "SandboxIP")
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return routeAway(err)
	}
	var errs []error
	for i, s := range rows {
		if ip := ips[s.HostID]; ip != "" && !slices.Equal(found[i].Val(), []any{ip, s.IP}) {
			errs = append(errs, m.route(ctx, store.Message{Key: string(s.ID)}))
		}
	}
	return errors.Join(errs...)
}

// dropRoutes removes the routes of sandboxes that are not among the rows and
// have ended, or never were.
func (m *Master) dropRoutes(ctx context.Context, rows []sandboxdb.Placed) error {
	in := make(map[string]bool, len(rows))
	for _, s := range rows {
		in[string(s.ID)] = true
	}
	var errs []error
	cursor := uint64(0)
	for {
		bounded, cancel := context.WithTimeout(ctx, routeTime)
		keys, next, err := m.routing.Scan(bounded, cursor, routeKey+"*", routePage).Result()
		cancel()
		if err != nil {
			return errors.Join(append(errs, routeAway(err))...)
		}
		for _, k := range keys {
			if id := strings.TrimPrefix(k, routeKey); !in[id] {
				// As its row says now: it may have started since.
				errs = append(errs, m.route(ctx, store.Message{Key: id}))
			}
		}
		if cursor = next; cursor == 0 {
			return errors.Join(errs...)
		}
	}
}
