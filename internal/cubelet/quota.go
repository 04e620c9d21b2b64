package cubelet

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"

	"github.com/paddock-dev/paddock/internal/cubelet/durable"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
)

// quotaFile keeps the quota, so that the host follows it while it waits for a
// master.
func (c *Cubelet) quotaFile() string { return filepath.Join(c.dir, "quota.json") }

// openQuota follows the quota that was told to an earlier process.
func (c *Cubelet) openQuota() error {
	b, err := os.ReadFile(c.quotaFile())
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return fault.Wrap(fault.DataDir, err, "quota")
	default:
		if err := json.Unmarshal(b, &c.quota); err != nil {
			return fault.New(fault.DataDir, "%s is no quota: remove it, and the master tells it anew", c.quotaFile())
		}
	}
	c.followLocked()
	return nil
}

// followLocked takes the quota as what the host lets sandboxes have. What they
// have already stays, also when it is more.
func (c *Cubelet) followLocked() {
	c.room, c.createLimit = c.quota.Over(c.own, int64(c.cfg.Cubelet.CreateConcurrency))
}

// follow takes a quota from the master, once it is on disk.
func (c *Cubelet) follow(ctx context.Context, q host.Quota) {
	c.mu.Lock()
	known := reflect.DeepEqual(q, c.quota)
	c.mu.Unlock()
	if known {
		return
	}
	b, err := json.Marshal(q)
	if err == nil {
		err = durable.Replace(c.quotaFile(), b)
	}
	if err != nil {
		c.log.ErrorContext(ctx, "a quota cannot be kept and is not followed", slog.Int64("quota_revision", q.Revision), slog.String("error", err.Error()))
		return
	}
	c.mu.Lock()
	c.quota = q
	c.followLocked()
	c.countLocked()
	c.mu.Unlock()
	c.log.InfoContext(ctx, "the host follows another quota", slog.Int64("quota_revision", q.Revision))
	c.tellSoon()
}
