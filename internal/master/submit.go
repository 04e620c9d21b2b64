package master

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/fail"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	guestPort     = 49983 // always exposed, counts against nobody
	maxExtraPorts = 3
	maxRef        = 1000
	minWritable   = 16 << 20
)

func (m *Master) serveFromImage(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.FromImageRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		req.RequestID = named(r, req.RequestID)
		err = normalise(&req)
	}
	var j template.Job
	if err == nil {
		j, err = m.submit(r.Context(), req)
	}
	m.answerJob(w, r, req.RequestID, j, err)
}

// normalise fills the defaults and refuses what breaks a rule (facts 1.3).
func normalise(r *cubeapi.FromImageRequest) error {
	set := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	set(&r.InstanceType, "cubebox")
	set(&r.NetworkType, "tap")
	set(&r.WritableLayerSize, "1Gi")
	r.SourceImageRef = strings.TrimSpace(r.SourceImageRef)
	if r.SourceImageRef == "" || len(r.SourceImageRef) > maxRef || strings.HasPrefix(r.SourceImageRef, "-") {
		return fault.New(fault.ImageRef, "source_image_ref %q", r.SourceImageRef)
	}
	if len(r.RequestID) > 190 {
		return fault.New(fault.InvalidInput, "requestID has %d characters, at most 190", len(r.RequestID))
	}
	if r.Alias != "" {
		if err := template.CheckAlias(r.Alias); err != nil {
			return err
		}
	}
	if n, err := sandbox.Bytes(r.WritableLayerSize, "Gi"); err != nil {
		return err
	} else if n < minWritable {
		return fault.New(fault.InvalidInput, "writable_layer_size %s: at least 16Mi", r.WritableLayerSize)
	}
	if _, err := resources(r.Overrides, nil, 0); err != nil {
		return err
	}
	slices.Sort(r.ExposedPorts)
	r.ExposedPorts = slices.Compact(r.ExposedPorts)
	extra := 0
	for _, p := range r.ExposedPorts {
		if p < 1 || p > 65535 {
			return fault.New(fault.InvalidInput, "exposed port %d", p)
		}
		if p != guestPort {
			extra++
		}
	}
	if extra > maxExtraPorts {
		return fault.New(fault.InvalidInput, "%d exposed ports, at most %d besides %d", extra, maxExtraPorts, guestPort)
	}
	return nil
}

// submit stores a job and what hands it on, in one transaction. The same
// request again returns the job of the first.
func (m *Master) submit(ctx context.Context, req cubeapi.FromImageRequest) (template.Job, error) {
	creds := rootfs.Auth{Username: req.RegistryUsername, Password: req.RegistryPassword}
	req.RegistryPassword = "" // never stored
	stored, err := json.Marshal(req)
	if err != nil {
		return template.Job{}, err
	}
	trace, err := json.Marshal(telemetry.Carrier(ctx))
	if err != nil {
		return template.Job{}, err
	}
	fresh := template.Job{
		ID: template.JobID(id.New(template.JobPrefix)), TemplateID: template.ID(id.New(template.IDPrefix)), RequestID: req.RequestID, Operation: template.OpCreate, AttemptNo: 1,
		Alias: req.Alias, Phase: template.PhasePulling, Request: stored, ImageRef: req.SourceImageRef, PhaseTimes: template.PhaseTimes{},
	}
	// Before the commit, so that the dispatch finds them however soon it comes.
	m.lend(fresh.ID, creds)
	var j template.Job
	err = m.db.Update(ctx, func(tx *store.Tx) (err error) {
		old, found, err := templatedb.JobByRequest(ctx, tx, req.RequestID, template.OpCreate)
		if err != nil {
			return err
		}
		if found {
			if string(old.Request) != string(stored) {
				return fault.New(fault.SubmissionReused, "request %s", req.RequestID)
			}
			j = old
			return nil
		}
		if req.Alias != "" {
			if d, taken, err := templatedb.DefinitionByAlias(ctx, tx, req.Alias); err != nil {
				return err
			} else if taken {
				return fault.New(fault.AliasTaken, "alias %q, held by %s", req.Alias, d.ID)
			}
		}
		if j, err = templatedb.AddJob(ctx, tx, fresh); err != nil {
			return err
		}
		return tx.Enqueue(ctx, store.Message{Topic: topicBuild, Key: string(j.ID), Trace: string(trace)}, 0)
	})
	if errors.Is(err, fault.Exists) {
		// The twin of this request was committed meanwhile.
		return m.submit(ctx, withPassword(req, creds))
	}
	if err != nil || j.ID != fresh.ID {
		m.forget(fresh.ID)
	}
	if err == nil {
		err = fail.Point("master.submit.after_commit")
	}
	return j, err
}

func withPassword(r cubeapi.FromImageRequest, a rootfs.Auth) cubeapi.FromImageRequest {
	r.RegistryPassword = a.Password
	return r
}

func (m *Master) lend(id template.JobID, a rootfs.Auth) {
	if a == (rootfs.Auth{}) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.credentials[id] = a
}

func (m *Master) forget(id template.JobID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.credentials, id)
}

// dispatch hands a job to the template centre. It is tried again while the
// centre is away; a refusal ends the job.
func (m *Master) dispatch(ctx context.Context, msg store.Message) error {
	j, err := m.job(ctx, template.JobID(msg.Key))
	if errors.Is(err, fault.JobNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if j.State != template.JobQueued {
		return nil
	}
	b := cubeapi.TCBuildRequest{JobID: string(j.ID), TemplateID: string(j.TemplateID)}
	if err := json.Unmarshal(j.Request, &b.Request); err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(msg.Trace), &b.Trace); err != nil {
		return err
	}
	m.mu.Lock()
	creds, lent := m.credentials[j.ID]
	m.mu.Unlock()
	if b.Request.RegistryUsername != "" && !lent {
		return m.failJob(ctx, j.ID, fault.New(fault.ImageDenied, "job %s: the master was restarted and keeps no credentials; submit it again", j.ID))
	}
	b.Request.RegistryPassword = creds.Password
	err = m.center.Build(telemetry.Join(ctx, b.Trace), b)
	switch {
	case err == nil:
		m.forget(j.ID)
		return nil
	case fault.Of(err).Class.Retry && msg.Attempts < dispatchTries:
		return err
	}
	m.forget(j.ID)
	return m.failJob(ctx, j.ID, err)
}

// dispatchTries bounds how often the template centre is asked: with the
// outbox's pauses, about a minute.
const dispatchTries = 9

func (m *Master) job(ctx context.Context, id template.JobID) (j template.Job, err error) {
	err = m.db.View(ctx, func(tx *store.Tx) (err error) {
		j, err = templatedb.GetJob(ctx, tx, id)
		return err
	})
	return j, err
}

// failJob ends a job with why. One that has ended keeps its own outcome.
func (m *Master) failJob(ctx context.Context, id template.JobID, why error) error {
	return m.db.Update(ctx, func(tx *store.Tx) error {
		j, err := templatedb.GetJob(ctx, tx, id)
		if err != nil || !j.State.Active() {
			return err
		}
		j.Error, j.ErrorCode = why.Error(), fault.Of(why).Name
		_, err = templatedb.MoveJob(ctx, tx, j, template.OnJobFailed)
		return err
	})
}
