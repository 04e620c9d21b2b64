package cubelet

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet/durable"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
)

const (
	// revisionBlock is how many counts are reserved on disk at once: counting
	// itself writes nothing.
	revisionBlock = 1 << 24
	// revisionSpare is what must be left of a block for a create to be admitted.
	// Ends need counts too, and cannot be refused.
	revisionSpare = 1 << 20
)

// counter counts what the host admits and lets go. It never goes back: on disk
// is a number that no count has reached yet, and the next process begins there.
// Cubelet.mu guards next and limit.
type counter struct {
	path        string
	next, limit int64
}

// openCounter continues the count of the process before. A new data directory
// begins at the present microsecond: a host that lost its directory goes on
// above what it counted before.
func openCounter(path string) (counter, error) {
	k := counter{path: path, next: time.Now().UnixMicro()}
	b, err := os.ReadFile(path)
	switch {
	case err == nil:
		if k.next, err = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err != nil || k.next < 0 || k.next > 1<<62 {
			return k, fault.New(fault.DataDir, "%s holds no number: remove it, and the count begins anew", path)
		}
	case !errors.Is(err, os.ErrNotExist):
		return k, fault.Wrap(fault.DataDir, err, "revision")
	}
	k.limit = k.next
	if err := k.reserve(k.next + revisionBlock); err != nil {
		return k, err
	}
	k.limit = k.next + revisionBlock
	return k, nil
}

func (k *counter) reserve(limit int64) error {
	if err := durable.Replace(k.path, fmt.Appendln(nil, limit)); err != nil {
		return fault.Wrap(fault.DataDir, err, "revision")
	}
	return nil
}

// spent reports that only ends may be counted until more is reserved.
func (k *counter) spent() bool { return k.limit-k.next < revisionSpare }

// reserveRevisions has counts ready long before they are needed.
func (c *Cubelet) reserveRevisions() {
	c.mu.Lock()
	next, limit := c.count.next, c.count.limit
	c.mu.Unlock()
	if limit-next > revisionBlock/2 {
		return
	}
	if err := c.count.reserve(next + revisionBlock); err != nil {
		c.log.ErrorContext(c.base, "revisions cannot be reserved", slog.String("error", err.Error()))
		return
	}
	c.mu.Lock()
	c.count.limit = next + revisionBlock
	c.mu.Unlock()
}

// countLocked notes that what the host holds has changed.
func (c *Cubelet) countLocked() { c.count.next++ }

// truth is what the host holds now.
func (c *Cubelet) truth() *hostpb.HostTruth {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.truthLocked()
}

func (c *Cubelet) truthLocked() *hostpb.HostTruth {
	t := &hostpb.HostTruth{Revision: c.count.next, Allocated: wireResources(c.usedLocked()), Allocatable: wireResources(c.room), Creating: int32(c.creatingLocked())}
	for _, s := range c.live {
		if s.charged {
			t.Sandboxes++
		}
	}
	return t
}

// creatingLocked is how many creates are under way.
func (c *Cubelet) creatingLocked() (n int64) {
	for _, s := range c.live {
		if s.state == starting {
			n++
		}
	}
	return n
}
