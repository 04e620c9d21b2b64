package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/host"
)

func (a *app) hostCommand() *cobra.Command {
	c := &cobra.Command{Use: "host", Short: "Look at the hosts, and say which may be used"}
	list := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List hosts, and why each is in or out", Args: args(0, 0), RunE: func(c *cobra.Command, _ []string) error {
		return a.with(func(api *cubeapi.Client) error {
			all, err := api.Hosts(c.Context())
			if err != nil {
				return err
			}
			return a.show(all, func(w io.Writer) { a.printHosts(w, all) })
		})
	}, Long: "List hosts, and why each is in or out. -o wide has zone, what was measured, and the quota.", Annotations: map[string]string{wide: wide}}
	info := &cobra.Command{Use: "info HOST", Short: "Show one host", Args: args(1, 1), RunE: func(c *cobra.Command, given []string) error {
		return a.with(func(api *cubeapi.Client) error {
			h, err := api.Host(c.Context(), given[0])
			if err != nil {
				return err
			}
			return a.show(h, func(w io.Writer) { printHost(w, h) })
		})
	}}
	c.AddCommand(list, info, a.cordonCommand(true), a.cordonCommand(false), a.hostDrainCommand(), a.hostLabelCommand(), a.hostQuotaCommand(), a.hostRemoveCommand())
	return c
}

func (a *app) printHosts(w io.Writer, all []cubeapi.Host) {
	head := "NODE_ID\tIP\tTYPE\tHEALTH\tCPU\tMEMORY_MIB\tSANDBOXES\tCREATING\tTEMPLATES"
	if a.wide {
		head += "\tZONE\tLOAD\tDISK\tQUOTA\tLABELS"
	}
	fmt.Fprintln(w, head+"\tREASON")
	for _, h := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d/%dm\t%d/%d\t%d/%d\t%s\t%d", h.NodeID, h.HostIP, h.InstanceType, h.Health, h.Allocated.MilliCPU, h.Allocatable.MilliCPU,
			h.Allocated.MemBytes>>20, h.Allocatable.MemBytes>>20, h.Sandboxes, h.Allocatable.Slots, creating(h.Usage), len(h.Artifacts))
		if a.wide {
			fmt.Fprintf(w, "\t%s\t%.1f\t%.0f%%\t%s\t%s", h.Zone, h.Usage.CPULoad, h.Usage.StorageDisk, quotaWord(h.Quota), labelWords(h.Labels))
		}
		fmt.Fprintf(w, "\t%s\n", h.Reason)
	}
}

// creating is how many creates are under way, of how many that may be.
func creating(u cubeapi.HostUsage) string {
	if u.CreateLimit == 0 {
		return fmt.Sprint(u.Creating)
	}
	return fmt.Sprintf("%d/%d", u.Creating, u.CreateLimit)
}

func quotaWord(q *cubeapi.HostQuotaState) string {
	switch {
	case q == nil:
		return "-"
	case q.Drift:
		return fmt.Sprintf("%d>%d", q.AppliedRevision, q.Desired.Revision)
	}
	return fmt.Sprint(q.Desired.Revision)
}

func labelWords(labels map[string]string) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, key+"="+labels[key])
	}
	return strings.Join(words, ",")
}

func printHost(w io.Writer, h *cubeapi.Host) {
	line := func(name, format string, values ...any) {
		fmt.Fprintf(w, "%s:\t"+format+"\n", append([]any{name}, values...)...)
	}
	some := func(name, value string) {
		if value != "" {
			line(name, "%s", value)
		}
	}
	line("node_id", "%s", h.NodeID)
	line("address", "%s:%d", h.HostIP, h.GRPCPort)
	line("instance_type", "%s", h.InstanceType)
	some("version", h.Version)
	line("health", "%s", h.Health)
	some("reason", h.Reason)
	line("cordoned", "%v", h.Cordoned)
	if d := h.Drain; d != nil {
		line("drain", "%s", drainWords(d))
	}
	some("zone", h.Zone)
	some("cluster_label", h.ClusterLabel)
	some("labels", labelWords(h.Labels))
	some("cpu_type", h.Usage.CPUType)
	for _, f := range []struct {
		name  string
		value host.Resources
	}{{"capacity", h.Capacity}, {"allocatable", h.Allocatable}, {"allocated", h.Allocated}} {
		line(f.name, "%dm CPU, %d MiB memory, %d MiB disk, %d sandboxes", f.value.MilliCPU, f.value.MemBytes>>20, f.value.DiskBytes>>20, f.value.Slots)
	}
	line("sandboxes", "%d", h.Sandboxes)
	line("creating", "%s", creating(h.Usage))
	line("templates", "%d", len(h.Artifacts))
	line("cpu", "%.0f%%, load %.2f", h.CPUUtil, h.Usage.CPULoad)
	line("memory_used", "%d MiB", h.Usage.MemUsedMiB)
	line("disk_used", "%.0f%% data, %.0f%% storage, %.0f%% system", h.Usage.DataDisk, h.Usage.StorageDisk, h.Usage.SysDisk)
	line("revision", "%d", h.Revision)
	if q := h.Quota; q != nil {
		line("quota", "%s", quotaWords(q))
	}
	some("registered_at", h.RegisteredAt)
	some("heartbeat_at", h.HeartbeatAt)
}

func drainWords(d *cubeapi.HostDrain) string {
	words := fmt.Sprintf("%s, %d sandboxes left", d.State, d.Left)
	if d.DeadlineAt != "" {
		words += ", until " + d.DeadlineAt
	}
	if d.Force {
		words += ", by force"
	}
	return words
}

// quotaWords tell a quota, and whether its host follows it.
func quotaWords(q *cubeapi.HostQuotaState) string {
	words := []string{fmt.Sprintf("revision %d", q.Desired.Revision)}
	for _, f := range []struct {
		value  *int64
		format string
		unit   int64
	}{
		{q.Desired.MilliCPU, "%dm CPU", 1}, {q.Desired.MemBytes, "%d MiB memory", 1 << 20}, {q.Desired.DiskBytes, "%d MiB disk", 1 << 20}, {q.Desired.Slots, "%d sandboxes", 1}, {q.Desired.CreateLimit, "%d creates at once", 1},
	} {
		if f.value != nil {
			words = append(words, fmt.Sprintf(f.format, *f.value/f.unit))
		}
	}
	if q.Drift {
		words = append(words, fmt.Sprintf("the host still follows revision %d", q.AppliedRevision))
	}
	return strings.Join(words, ", ")
}
