package master_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"mime/multipart"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// agent is a program of this machine, as far as its head goes.
func agent(body string) string {
	b := make([]byte, 64)
	copy(b, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(b[16:], 2)
	binary.LittleEndian.PutUint16(b[18:], map[string]uint16{"amd64": 62, "arm64": 183}[runtime.GOARCH])
	binary.LittleEndian.PutUint32(b[20:], 1)
	binary.LittleEndian.PutUint16(b[52:], 64)
	return string(b) + body
}

func withAgent(program string) func(*cubeapi.FromImageRequest) {
	return func(q *cubeapi.FromImageRequest) { q.Envd = program }
}

// form posts a form of parts, as name and contents, and returns the refusal.
func (r *rig) form(parts ...[2]string) (int, string) {
	r.t.Helper()
	body := &bytes.Buffer{}
	w := multipart.NewWriter(body)
	for _, p := range parts {
		part, err := w.CreateFormFile(p[0], p[0])
		must(r.t, err)
		_, err = io.WriteString(part, p[1])
		must(r.t, err)
	}
	must(r.t, w.Close())
	q, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.front.URL+cubeapi.PathFromImage, body)
	must(r.t, err)
	q.Header.Set("Content-Type", w.FormDataContentType())
	q.Header.Set(cubeapi.HeaderAPIKey, apiKey)
	answer, err := http.DefaultClient.Do(q)
	must(r.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	must(r.t, err)
	return answer.StatusCode, string(text)
}

func TestATemplateWithAnAgentOfItsOwn(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn, func(c *config.Config) { c.Master.HealRebuild = false })
		r.start()
		h := r.host(0, plenty)
		program := agent("the first")
		j, q := r.submitIdle(alias("app"), withAgent(program), func(q *cubeapi.FromImageRequest) { q.EnvdSHA256 = "what the sender says" })
		if q.Request.EnvdSHA256 != sum([]byte(program)) || string(q.EnvdData) != program {
			t.Fatalf("the centre has %d bytes of sha256 %s", len(q.EnvdData), q.Request.EnvdSHA256)
		}
		if !r.m.Lends(j.JobID) {
			t.Error("the job is not one that only this master can hand over")
		}
		r.view(func(ctx context.Context, tx *store.Tx) error {
			row, err := templatedb.GetJob(ctx, tx, template.JobID(j.JobID))
			if strings.Contains(string(row.Request), "the first") || !strings.Contains(string(row.Request), sum([]byte(program))) {
				t.Errorf("stored: %s", row.Request)
			}
			return err
		})
		must(t, r.center.report.Job(t.Context(), j.JobID, r.center.built(q)))
		made := r.ended(j.JobID)
		if made.Status != "READY" {
			t.Fatalf("%+v", made)
		}
		eventually(t, "the agent is forgotten", func() bool { return !r.m.Lends(j.JobID) })
		// Its bytes can be brought anew, and not be made anew.
		r.reported(made.ArtifactID, h)
		if again := r.redo(cubeapi.RedoRequest{TemplateID: "app"}); again.Status != "READY" {
			t.Errorf("redo: %+v", again)
		}
		r.center.set(func(c *fakeCenter) { delete(c.bytes, made.ArtifactID) })
		before := r.everything()
		_, err := r.api.Redo(t.Context(), cubeapi.RedoRequest{TemplateID: "app"})
		refused(t, err, fault.EnvdNeeded)
		if after := r.everything(); after != before {
			t.Errorf("the refused redo touched something:\n%s\n%s", before, after)
		}
	})
}

func TestABadFormIsRefused(t *testing.T) {
	r := newRig(t, sqlite(t), func(c *config.Config) { c.TemplateCenter.MaxEnvdMiB = 1 })
	r.start()
	request := [2]string{"request", `{"source_image_ref": "registry.local/base:1"}`}
	program := [2]string{"envd", agent("")}
	for name, c := range map[string]struct {
		parts [][2]string
		says  string
	}{
		"no envd":     {[][2]string{request}, "must have the parts"},
		"no request":  {[][2]string{program}, "must have the parts"},
		"twice":       {[][2]string{request, program, program}, "twice"},
		"more":        {[][2]string{request, program, {"more", ""}}, "more"},
		"no JSON":     {[][2]string{{"request", "{"}, program}, "JSON"},
		"no program":  {[][2]string{request, {"envd", "#!/bin/sh"}}, "ELF"},
		"too large":   {[][2]string{request, {"envd", agent(strings.Repeat("x", 1<<20))}}, "max_envd_mib"},
		"much larger": {[][2]string{request, {"envd", agent(strings.Repeat("x", 1<<23))}}, "max_envd_mib"},
	} {
		t.Run(name, func(t *testing.T) {
			if status, text := r.form(c.parts...); status != http.StatusBadRequest || !strings.Contains(text, "invalid_input") || !strings.Contains(text, c.says) {
				t.Errorf("%d %s, not %q", status, text, c.says)
			}
		})
	}
	_, err := r.api.FromImage(t.Context(), image(func(q *cubeapi.FromImageRequest) { q.EnvdSHA256 = "0123" }))
	refused(t, err, fault.InvalidInput)
	// What waits in memory is bounded.
	r.center.set(func(c *fakeCenter) { c.idle = true })
	big := agent(strings.Repeat("x", 1<<20-64))
	var last error
	for i := range 5 {
		_, last = r.api.FromImage(t.Context(), image(withAgent(big), func(q *cubeapi.FromImageRequest) { q.WritableLayerSize = strconv.Itoa(i+1) + "Gi" }))
	}
	refused(t, last, fault.TooManyWaiting)
}
