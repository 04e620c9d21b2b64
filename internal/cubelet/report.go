package cubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
)

// reportTime bounds one report.
const reportTime = 5 * time.Second

// report tells the master of this host until ctx ends: once what it is, then
// again and again how it stands.
func (c *Cubelet) report(ctx context.Context) {
	client := cubeapi.NewHostClient(c.cfg.Master.Addr, c.cfg.Auth.HostToken.Reveal())
	registered, quiet := false, false
	for {
		c.watch(ctx)
		err := c.tell(ctx, client, &registered)
		switch {
		case err == nil:
			quiet = false
		case ctx.Err() == nil && !quiet:
			// Once per outage: the master's absence is no news every two seconds.
			quiet = true
			c.log.WarnContext(ctx, "the master does not take reports", slog.String("error", err.Error()))
		}
		// Spread, so that a fleet does not report in step.
		pause := c.cfg.Cubelet.HeartbeatInterval
		pause += time.Duration((rand.Float64() - 0.5) * 0.1 * float64(pause))
		if !registered {
			pause = min(pause, 200*time.Millisecond)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func (c *Cubelet) tell(ctx context.Context, client *cubeapi.HostClient, registered *bool) error {
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	if !*registered {
		physical, _, err := capacity(filepath.Join(c.cfg.DataDir, "cubelet"), c.cfg.Cubelet)
		if err != nil {
			return err
		}
		l := c.cfg.Cubelet
		err = client.Register(ctx, cubeapi.HostRegisterRequest{
			NodeID: l.NodeID, HostIP: l.HostIP, GRPCPort: c.port, InstanceType: l.InstanceType,
			Capacity: physical, Allocatable: c.room, Version: c.version,
		})
		if err != nil {
			return err
		}
		*registered = true
	}
	status, err := c.status()
	if err != nil {
		return err
	}
	err = client.Report(ctx, host.ID(c.cfg.Cubelet.NodeID), status)
	if errors.Is(err, fault.HostUnknown) {
		*registered = false
	}
	return err
}

func (c *Cubelet) status() (cubeapi.HostStatusRequest, error) {
	artifacts, err := c.images.list()
	if err != nil {
		return cubeapi.HostStatusRequest{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return cubeapi.HostStatusRequest{Ready: true, Allocated: c.usedLocked(), Sandboxes: len(c.live), Artifacts: artifacts}, nil
}

// watch notices sandboxes whose kernel ended by itself.
func (c *Cubelet) watch(ctx context.Context) {
	for _, s := range c.all() {
		c.mu.Lock()
		dead := s.state == running && born(s.entry.PID) != s.entry.PIDBorn
		if dead {
			s.state, s.reason = exited, deathOf(s)
		}
		c.mu.Unlock()
		if dead {
			c.log.WarnContext(ctx, "sandbox ended by itself", slog.String("sandbox_id", s.entry.ID), slog.String("reason", s.reason))
		}
	}
}

func deathOf(s *instance) string {
	if n := s.group.OOMKills(); n > 0 {
		return fmt.Sprintf("oom: it needed more than its %d MiB of memory", s.entry.Resources.MemBytes>>20)
	}
	return "exited: its kernel ended"
}
