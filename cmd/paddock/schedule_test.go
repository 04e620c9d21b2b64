package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/master"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// small is a master with a template called app and a fleet in which everything
// is wrong that can be, but for three hosts.
func small(t *testing.T) (address string) {
	t.Helper()
	ctx := t.Context()
	db, err := store.Open(ctx, store.Options{DSN: "sqlite:" + filepath.Join(t.TempDir(), "paddock.db"), AutoMigrate: true})
	check(t, err)
	t.Cleanup(func() { check(t, db.Close()) })
	c := config.Default()
	c.Auth = config.Auth{APIKey: "key", CallbackToken: "callback", HostToken: "host"}
	m, err := master.New(master.Deps{Config: c, Store: db, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	check(t, err)
	face := httptest.NewServer(m.Handler())
	t.Cleanup(face.Close)
	const tpl, rfs = "tpl-000000000000000000000001", "rfs-000000000000000000000001"
	check(t, db.Update(ctx, func(tx *store.Tx) error {
		_, err := templatedb.AddArtifact(ctx, tx, template.Artifact{ID: rfs, ContentKey: strings.Repeat("0", 64), SizeBytes: 1 << 30})
		if err != nil {
			return err
		}
		d, err := templatedb.AddDefinition(ctx, tx, template.Definition{ID: tpl, InstanceType: "cubebox", ArtifactID: rfs, Request: []byte(`{"writable_layer_size": "1Gi"}`)})
		if err != nil {
			return err
		}
		if d, err = templatedb.MoveDefinition(ctx, tx, d, template.OnAllReady); err == nil {
			_, _, err = templatedb.ClaimAlias(ctx, tx, d, "app", tx.Now)
		}
		return err
	}))
	tell, api := cubeapi.NewHostClient(face.URL, "host"), cubeapi.NewClient(face.URL, "key")
	room := host.Resources{MilliCPU: 16_000, MemBytes: 32 << 30, DiskBytes: 500 << 30, Slots: 50}
	for n, how := range []string{"", "busy", "far", "cordoned", "sick", "empty", "gpu", "full", "other"} {
		q := cubeapi.HostRegisterRequest{NodeID: fmt.Sprintf("host-%02d", n), HostIP: fmt.Sprintf("10.0.0.%d", n+1), GRPCPort: 9999, InstanceType: "cubebox", Zone: "near", Capacity: room, Allocatable: room}
		s := cubeapi.HostStatusRequest{Ready: true, Artifacts: []string{rfs}}
		switch how {
		case "busy":
			s.Allocated, s.Sandboxes = host.Resources{MilliCPU: 8000, MemBytes: 12 << 30, DiskBytes: 80 << 30, Slots: 8}, 8
		case "far":
			q.Zone, s.Allocated, s.Sandboxes = "far", host.Resources{MilliCPU: 4000, MemBytes: 4 << 30, DiskBytes: 40 << 30, Slots: 4}, 4
		case "sick":
			s.Ready, s.Reason = false, "its disk is gone"
		case "empty":
			s.Artifacts = nil
		case "gpu":
			q.Labels = map[string]string{"gpu": "a100"}
		case "full":
			s.Allocated, s.Sandboxes = host.Resources{MilliCPU: 15_500, MemBytes: 30 << 30, DiskBytes: 80 << 30, Slots: 8}, 8
		case "other":
			q.InstanceType = "metal"
		}
		check(t, tell.Register(ctx, q))
		check(t, tell.Report(ctx, host.ID(q.NodeID), s))
		if how == "cordoned" {
			_, err := api.CordonHost(ctx, q.NodeID, true)
			check(t, err)
		}
	}
	return face.URL
}

// golden compares with a file of testdata/golden; UPDATE=1 writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if os.Getenv("UPDATE") != "" {
		check(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	check(t, err)
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}

// TestADryRunReadsWell drives the command line against a master, its store and
// its scheduler.
func TestADryRunReadsWell(t *testing.T) {
	address := small(t)
	dry := func(stdin string, words ...string) (code int, stdout, stderr string) {
		var out, errs bytes.Buffer
		code = run(context.Background(), append([]string{"schedule", "--dry-run", "--address", address, "--api-key", "key", "--seed", "7"}, words...), strings.NewReader(stdin), &out, &errs)
		return code, out.String(), errs.String()
	}
	for _, c := range []struct {
		name, stdin string
		words       []string
		code        int
	}{
		{"fits.txt", "", []string{"app"}, 0},
		{"full.txt", "", []string{"app", "--cpu", "14", "--memory", "33Gi"}, fault.NoCapacity.Class.Exit},
		{"nowhere.txt", "template_id: app\ndistribution_scope: [near]\nannotations: {com.nodeaffinity.instancetype: cubebox}\n", []string{"-f", "-", "--annotation", "com.nodeaffinity.cluster.label=a:b", "--limit", "2"}, fault.NoHost.Class.Exit},
		{"host.txt", "", []string{"app", "--cpu", "1", "--memory", "4Gi", "--host", "host-07,host-02"}, 0},
	} {
		code, stdout, stderr := dry(c.stdin, c.words...)
		if code != c.code || !strings.Contains(stderr, "nothing was made") {
			t.Errorf("%s: exit status %d, want %d: %s", c.name, code, c.code, stderr)
		}
		golden(t, c.name, stdout)
	}
	code, first, _ := dry("", "app", "-o", "json")
	if code2, again, _ := dry("", "app", "-o", "json"); code+code2 != 0 || !strings.Contains(first, `"fits": true`) || !strings.Contains(again, `"seed": "7"`) {
		t.Errorf("as JSON: %s", first)
	}
	for want, words := range map[string][]string{
		"name a template":           nil,
		"template_not_found":        {"nobody"},
		"have containers, which":    nil,
		"limit \"2000\": must be 1": {"app", "--limit", "2000"},
	} {
		stdin := ""
		if strings.HasPrefix(want, "have") {
			stdin, words, want = "containers: [{}]\n", []string{"app", "-f", "-", "--cpu", "1"}, "has containers, which"
		}
		if code, _, stderr := dry(stdin, words...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit status %d: %s", words, code, stderr)
		}
	}
}
