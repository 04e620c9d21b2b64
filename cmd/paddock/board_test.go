package main

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
	"github.com/paddock-dev/paddock/test/service"
)

// halfway stands before a registry and keeps the second half of each blob over
// a MiB back until the test ends.
func halfway(t *testing.T, registry string) string {
	t.Helper()
	ended := make(chan struct{})
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: registry}) },
		FlushInterval: -1, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method == http.MethodGet && r.ContentLength > 1<<20 {
				r.Body = &held{ReadCloser: r.Body, left: r.ContentLength / 2, until: ended}
			}
			return nil
		},
	}
	s := httptest.NewServer(proxy)
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(ended) })
	return strings.TrimPrefix(s.URL, "http://")
}

type held struct {
	io.ReadCloser
	left  int64
	until <-chan struct{}
}

func (h *held) Read(b []byte) (int, error) {
	if h.left == 0 {
		<-h.until
		return 0, io.ErrUnexpectedEOF
	}
	n, err := h.ReadCloser.Read(b[:min(int64(len(b)), h.left)])
	h.left -= int64(n)
	return n, err
}

// In one process without Redis, what the builder writes on its board is seen
// at once: here no report of it ever reaches the master.
func TestRolesOfOneProcessShareTheBoard(t *testing.T) {
	nowhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }))
	t.Cleanup(nowhere.Close)
	body := make([]byte, 4<<20)
	_, err := rand.Read(body)
	check(t, err)
	registry := service.Registry(t)
	image := service.Image(t, registry, "large:1", service.File{Name: "large", Body: string(body)})
	image = strings.Replace(image, registry, halfway(t, registry), 1)

	cfg := config.Default()
	dir := t.TempDir()
	cfg.Database.DSN = config.Secret("sqlite:" + filepath.Join(dir, "p.db"))
	cfg.Master.Listen, cfg.TemplateCenter.Listen = freePort(t), freePort(t)
	cfg.Master.Addr, cfg.Master.TemplateCenterAddr = nowhere.URL, "http://"+cfg.TemplateCenter.Listen
	cfg.Auth.APIKey, cfg.Auth.CallbackToken, cfg.Auth.HostToken = "key", "token", "token"
	cfg.TemplateCenter.WorkDir, cfg.TemplateCenter.CacheDir, cfg.ArtifactStore.Dir = filepath.Join(dir, "work"), filepath.Join(dir, "layers"), filepath.Join(dir, "artifacts")
	cfg.TemplateCenter.GuestBinary = filepath.Join(dir, "guest")
	check(t, os.WriteFile(cfg.TemplateCenter.GuestBinary, []byte("guest"), 0o600))
	p := &process{cfg: cfg, log: slog.New(slog.DiscardHandler), metrics: telemetry.NewRegistry()}
	check(t, p.open(t.Context(), []string{"master", "templatecenter"}))
	t.Cleanup(func() { check(t, p.db.Close()) })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve.Group(ctx, p.log, p.parts...) }()
	t.Cleanup(func() { cancel(); check(t, <-ended) })

	api := cubeapi.NewClient("http://"+cfg.Master.Listen, "key")
	job, err := api.FromImage(t.Context(), cubeapi.FromImageRequest{SourceImageRef: image})
	check(t, err)
	runtimetest.Eventually(t, "half of the pull is shown", func() bool {
		j, err := api.Job(t.Context(), job.JobID)
		check(t, err)
		return j.PullDoneBytes > 0 && j.PullDoneBytes < j.PullTotalBytes
	})
}
