package master

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

const (
	maxTail     = 1 << 20 // lines
	maxUsageIDs = 1000
)

// serveLogs streams what a sandbox's first program wrote. A refusal before the
// first byte has its HTTP status; a stream that breaks off later is cut.
func (m *Master) serveSandboxLogs(w http.ResponseWriter, r *http.Request) {
	if err := m.sandboxLogs(w, r); err != nil {
		serve.WriteError(w, r, err)
	}
}

func (m *Master) sandboxLogs(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	tail, follow := 0, false
	var err error
	if given := q.Get("tail"); given != "" {
		if tail, err = strconv.Atoi(given); err != nil || tail < 0 || tail > maxTail {
			return fault.New(fault.InvalidInput, "tail %.20q: 0 to %d lines", given, maxTail)
		}
	}
	if given := q.Get("follow"); given != "" {
		if follow, err = strconv.ParseBool(given); err != nil {
			return fault.New(fault.InvalidInput, "follow %.20q: must be true or false", given)
		}
	}
	client, at, err := m.holder(r.Context(), q.Get("sandbox_id"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stream, err := client.ReadLogs(ctx, &hostpb.ReadLogsRequest{SandboxId: q.Get("sandbox_id"), Tail: int32(tail), Follow: follow}) //nolint:gosec // checked: at most maxTail
	if err != nil {
		return hostFault(ctx, err, at)
	}
	part, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		return hostFault(ctx, err, at)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	flush := http.NewResponseController(w)
	for err == nil {
		if _, gone := w.Write(part.GetData()); gone != nil || flush.Flush() != nil {
			return nil // the caller went away
		}
		part, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		panic(http.ErrAbortHandler) // so that nobody takes what came for the whole
	}
	return nil
}

// holder returns the host client of a sandbox that has not ended.
func (m *Master) holder(ctx context.Context, id string) (hostpb.HostServiceClient, host.ID, error) {
	if err := checkID(id); err != nil {
		return nil, "", err
	}
	s, err := m.sandbox(ctx, sandbox.ID(id))
	if err != nil {
		return nil, "", err
	}
	if s.HostID == "" || s.State == sandbox.Terminating || s.State == sandbox.Terminated {
		return nil, "", unfit(s)
	}
	client, err := m.hostOf(ctx, s.HostID)
	return client, s.HostID, err
}

// serveUsage answers what sandboxes use, as their hosts say now.
func (m *Master) serveUsage(w http.ResponseWriter, r *http.Request) {
	answer := cubeapi.UsageAnswer{Envelope: cubeapi.OK(requestID(r))}
	ids := r.URL.Query()["sandbox_id"]
	var err error
	for _, id := range ids {
		err = errors.Join(err, checkID(id))
	}
	if len(ids) > maxUsageIDs {
		err = fault.New(fault.InvalidInput, "%d sandboxes, at most %d", len(ids), maxUsageIDs)
	}
	if err == nil {
		answer.Data, answer.Partial, err = m.usage(r.Context(), ids)
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}

// usage asks the hosts of these sandboxes, or of all that run. Those that did
// not answer are named; of one sandbox alone that is the answer.
func (m *Master) usage(ctx context.Context, ids []string) (all []cubeapi.Usage, partial []string, err error) {
	byHost := map[host.ID][]string{}
	err = m.db.View(ctx, func(tx *store.Tx) error {
		clear(byHost)
		if len(ids) == 0 {
			list, err := sandboxdb.ListPlaced(ctx, tx, []sandbox.State{sandbox.Running})
			for _, s := range list {
				byHost[s.HostID] = append(byHost[s.HostID], string(s.ID))
			}
			return err
		}
		for _, id := range ids {
			s, err := sandboxdb.GetSandbox(ctx, tx, sandbox.ID(id))
			if err != nil {
				return err
			}
			if s.HostID == "" || s.State == sandbox.Terminating || s.State == sandbox.Terminated {
				return unfit(s)
			}
			byHost[s.HostID] = append(byHost[s.HostID], id)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	all = []cubeapi.Usage{}
	var mu sync.Mutex
	var last error
	var group errgroup.Group
	group.SetLimit(compareAtOnce)
	for at, here := range byHost {
		group.Go(func() error {
			list, err := m.usageOn(ctx, at, here)
			mu.Lock()
			defer mu.Unlock()
			if all = append(all, list...); err != nil {
				partial, last = append(partial, string(at)), err
			}
			return nil
		})
	}
	_ = group.Wait() // each failure is noted
	if len(partial) == len(byHost) && last != nil {
		return nil, nil, last
	}
	return all, partial, nil
}

func (m *Master) usageOn(ctx context.Context, at host.ID, ids []string) (list []cubeapi.Usage, err error) {
	client, err := m.hostOf(ctx, at)
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, hostCall)
	defer cancel()
	answer, err := client.StatSandboxes(bounded, &hostpb.StatSandboxesRequest{SandboxIds: ids})
	for _, u := range answer.GetSandboxes() {
		list = append(list, cubeapi.Usage{
			SandboxID: u.GetSandboxId(), At: stamp(u.GetAt().AsTime()), CPUUS: u.GetCpuUs(), MilliCPULimit: u.GetMilliCpuLimit(), MemBytes: u.GetMemBytes(), MemLimitBytes: u.GetMemLimitBytes(),
			DiskBytes: u.GetDiskBytes(), DiskLimitBytes: u.GetDiskLimitBytes(), RxBytes: u.GetRxBytes(), TxBytes: u.GetTxBytes(), Processes: u.GetProcesses(), OOMKills: u.GetOomKills(),
		})
	}
	return list, hostFault(ctx, err, at)
}
