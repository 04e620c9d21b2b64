package cubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
)

const (
	reportTime   = 5 * time.Second // bound on one report
	firstBackoff = 100 * time.Millisecond
	longBackoff  = 7 * time.Second
	// minFree is what the disk must have left for the host to be of use.
	minFree = 256 << 20
)

// report tells the master of this host until ctx ends: once what it is, then
// again and again how it stands, and at once when that changed.
func (c *Cubelet) report(ctx context.Context) {
	client := cubeapi.NewHostClient(c.cfg.Master.Addr, c.cfg.Auth.HostToken.Reveal())
	registered, quiet, backoff := false, false, firstBackoff
	var load cpuLoad
	load.since()
	for {
		err := c.tell(ctx, client, &registered, &load)
		pause := c.cfg.Cubelet.HeartbeatInterval
		switch {
		case err == nil:
			quiet, backoff = false, firstBackoff
		case errors.Is(err, fault.HostUnknown):
			pause = firstBackoff // it only has to register again
		case ctx.Err() == nil:
			// Once per outage: the master's absence is no news every two seconds.
			if !quiet {
				c.log.WarnContext(ctx, "the master does not take reports", slog.String("error", err.Error()))
			}
			quiet, pause, backoff = true, backoff, min(2*backoff, longBackoff)
		}
		// Spread, so that a fleet does not report in step.
		pause += time.Duration((rand.Float64() - 0.5) * 0.2 * float64(pause))
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		case <-c.newsUnless(err):
		}
	}
}

// newsUnless is c.news, or nothing while the master does not answer: news must
// not make the questions more frequent then.
func (c *Cubelet) newsUnless(err error) <-chan struct{} {
	if err != nil {
		return nil
	}
	return c.news
}

// tellSoon has the master told that something changed.
func (c *Cubelet) tellSoon() {
	select {
	case c.news <- struct{}{}:
	default: // it will be told
	}
}

func (c *Cubelet) tell(ctx context.Context, client *cubeapi.HostClient, registered *bool, load *cpuLoad) error {
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	if !*registered {
		physical, _, err := capacity(c.dir, c.cfg.Cubelet)
		if err != nil {
			return err
		}
		if err = client.Register(ctx, c.registration(physical)); err != nil {
			return err
		}
		*registered = true
	}
	status, err := c.status()
	if err != nil {
		return err
	}
	status.CPUUtil = load.since()
	answer, err := client.Exchange(ctx, host.ID(c.cfg.Cubelet.NodeID), status)
	if errors.Is(err, fault.HostUnknown) {
		*registered = false
	}
	if err == nil && answer.Quota != nil {
		c.follow(ctx, *answer.Quota)
	}
	return err
}

func (c *Cubelet) registration(physical host.Resources) cubeapi.HostRegisterRequest {
	l := c.cfg.Cubelet
	c.mu.Lock()
	defer c.mu.Unlock()
	return cubeapi.HostRegisterRequest{
		NodeID: l.NodeID, HostIP: l.HostIP, GRPCPort: c.port, InstanceType: l.InstanceType, Zone: l.Zone, ClusterLabel: l.ClusterLabel, Labels: l.HostLabels(),
		Capacity: physical, Allocatable: c.room, Version: c.version, Revision: c.count.next,
	}
}

func (c *Cubelet) status() (cubeapi.HostStatusRequest, error) {
	artifacts, err := c.images.List()
	if err != nil {
		return cubeapi.HostStatusRequest{}, err
	}
	var s unix.Statfs_t
	if err := unix.Statfs(c.dir, &s); err != nil {
		return cubeapi.HostStatusRequest{}, err
	}
	answer := cubeapi.HostStatusRequest{Ready: true, Artifacts: artifacts, HostUsage: c.measure()}
	if free := int64(s.Bavail) * s.Bsize; free < minFree {
		answer.Ready, answer.Reason = false, fmt.Sprintf("the disk of %s is full: %d MiB left", c.dir, free>>20)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.countLocked() // of two reports, too, the later one counts higher
	room := c.room
	answer.Revision, answer.Allocated, answer.Allocatable, answer.QuotaRevision = c.count.next, c.usedLocked(), &room, c.quota.Revision
	answer.Creating, answer.CreateLimit, answer.MaxSandboxes = c.creatingLocked(), c.createLimit, room.Slots
	answer.Warm = c.warmCountLocked()
	for _, s := range c.live {
		if s.charged {
			answer.Sandboxes++
		}
	}
	return answer, nil
}
