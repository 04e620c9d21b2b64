package master

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/sandbox"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	guestPort     = 49983 // always exposed, counts against nobody
	maxExtraPorts = 3
	maxRef        = 1000
	maxRequestID  = 190
	maxKind       = 64 // of instance_type and network_type
	minWritable   = 16 << 20
	maxDisk       = 16 << 40
	maxPriority   = 100
	joinedHolder  = "from-image" // of the request ids that joined another's job
)

// kept is a build request as it is stored: without credentials, but with the
// mark that it had some.
type kept struct {
	cubeapi.FromImageRequest
	Private bool `json:"private,omitempty"`

	// Of a template that was made of an artifact.
	ArtifactID string            `json:"artifact_id,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	claims     map[string]string // what the request says of its artifact
}

func keptOf(stored []byte) (kept, error) {
	var k kept
	if err := json.Unmarshal(stored, &k); err != nil {
		return k, fault.Wrap(fault.Bug, err, "stored request")
	}
	return k, nil
}

func (m *Master) serveFromImage(w http.ResponseWriter, r *http.Request) {
	req, unknown, err := m.readFromImage(w, r)
	said := warnings(unknown)
	if err == nil {
		if req.Wait {
			said = append(said, "wait has no effect: follow the job")
		}
		req.RequestID = named(r, req.RequestID)
		err = normalise(&req)
	}
	var j template.Job
	if err == nil {
		j, err = m.submit(r.Context(), req)
	}
	m.answerJob(w, r, req.RequestID, j, err, said...)
}

// normalise fills the defaults and refuses what breaks a rule. All faults
// that need no look at the rows are found here.
func normalise(r *cubeapi.FromImageRequest) error {
	if err := checkImage(r); err != nil {
		return err
	}
	return normaliseSpec(r)
}

// normaliseSpec is normalise for all but the image.
func normaliseSpec(r *cubeapi.FromImageRequest) error {
	set := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	set(&r.InstanceType, "cubebox")
	set(&r.NetworkType, "tap")
	set(&r.WritableLayerSize, "1Gi")
	if err := checkRequestID(r.RequestID); err != nil {
		return err
	}
	switch {
	case len(r.InstanceType) > maxKind || len(r.NetworkType) > maxKind:
		return fault.New(fault.InvalidInput, "instance_type and network_type have at most %d characters", maxKind)
	case r.Priority < -maxPriority || r.Priority > maxPriority:
		return fault.New(fault.InvalidInput, "priority %d: must be -%d to %d", r.Priority, maxPriority, maxPriority)
	case r.RegistryPassword != "" && r.RegistryUsername == "":
		return fault.New(fault.InvalidInput, "registry_password without registry_username")
	}
	if err := checkFields(r); err != nil {
		return err
	}
	if r.Alias != "" {
		if err := template.CheckAlias(r.Alias); err != nil {
			return err
		}
	}
	if n, err := sandbox.Bytes(r.WritableLayerSize, "Gi"); err != nil {
		return err
	} else if n < minWritable || n > maxDisk {
		return fault.New(fault.InvalidInput, "writable_layer_size %s: must be 16Mi to 16Ti", r.WritableLayerSize)
	}
	if _, err := resources(r.Overrides, nil, 0); err != nil {
		return err
	}
	if o := r.Overrides; o != nil {
		if err := checkProgram(o.Command, o.Args, o.Envs); err != nil {
			return err
		}
	}
	if err := checkProbe(r.Overrides); err != nil {
		return err
	}
	return checkPorts(r)
}

func checkImage(r *cubeapi.FromImageRequest) error {
	r.SourceImageRef = strings.TrimSpace(r.SourceImageRef)
	ref := r.SourceImageRef
	for _, scheme := range []string{"docker://", "https://", "http://"} {
		ref = strings.TrimPrefix(ref, scheme)
	}
	if registry, _, _ := strings.Cut(ref, "/"); strings.Contains(registry, "@") && strings.Contains(ref, "/") {
		// Not quoted: what stands before the @ may be a password.
		return fault.New(fault.ImageRef, "source_image_ref carries a user name: send registry_username and registry_password")
	}
	if strings.HasPrefix(ref, cubeapi.SnapshotRef) {
		return fault.New(fault.ImageRef, "source_image_ref %.100q: a template of a snapshot is made with %s", ref, cubeapi.PathSandboxCommit)
	}
	if len(ref) > maxRef || strings.HasPrefix(ref, "-") {
		return fault.New(fault.ImageRef, "source_image_ref %.100q", ref)
	}
	if _, err := name.ParseReference(ref); err != nil {
		return fault.Wrap(fault.ImageRef, err, "source_image_ref %.100q", ref)
	}
	return nil
}

// What the kernel takes of a program's arguments and environment: of one string,
// and, well below its limit, of all.
const (
	maxString  = 128<<10 - 1
	maxStrings = 1 << 20
)

// checkProgram refuses a command and variables that no kernel can start.
func checkProgram(command, args []string, envs []cubeapi.KeyValue) error {
	total := 0
	if len(command) > 0 && command[0] == "" {
		return fault.New(fault.InvalidInput, "command: its first word, the program, is empty")
	}
	for i, word := range slices.Concat(command, args) {
		total += len(word) + 1
		if strings.ContainsRune(word, 0) || len(word) > maxString {
			return fault.New(fault.InvalidInput, "word %d of command and args: at most %d bytes, none of them zero", i, maxString)
		}
	}
	for _, e := range envs {
		total += len(e.Key) + len(e.Value) + 2
		switch {
		case e.Key == "" || strings.ContainsAny(e.Key, "=\x00") || !isName(e.Key) || strings.ContainsRune(e.Value, 0):
			return fault.New(fault.InvalidInput, "environment variable %.128q", e.Key)
		case len(e.Key)+len(e.Value)+1 > maxString:
			return fault.New(fault.InvalidInput, "environment variable %.128q: over %d bytes", e.Key, maxString)
		}
	}
	if total > maxStrings {
		return fault.New(fault.InvalidInput, "command, args and environment have %d bytes, at most %d", total, maxStrings)
	}
	return nil
}

func checkPorts(r *cubeapi.FromImageRequest) error {
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
// request again returns the job of the first; the password is no part of it.
func (m *Master) submit(ctx context.Context, req cubeapi.FromImageRequest) (template.Job, error) {
	creds := credentials{req.RegistryUsername, req.RegistryPassword, req.Envd}
	private := creds != credentials{}
	req.RegistryUsername, req.RegistryPassword, req.Envd = "", "", "" // never stored
	stored, err := json.Marshal(kept{FromImageRequest: req, Private: private})
	if err != nil {
		return template.Job{}, err
	}
	fresh := template.Job{
		ID: template.JobID(id.New(template.JobPrefix)), TemplateID: template.ID(id.New(template.IDPrefix)), RequestID: req.RequestID, Operation: template.OpCreate, AttemptNo: 1,
		Alias: req.Alias, Priority: req.Priority, Phase: template.PhasePulling, Request: stored, ImageRef: req.SourceImageRef, PhaseTimes: template.PhaseTimes{},
	}
	if fresh.SpecKey, err = specKey(req); err != nil {
		return template.Job{}, err
	}
	var j template.Job
	err = m.update(ctx, func(tx *store.Tx) (err error) {
		old, found, err := templatedb.JobByRequest(ctx, tx, req.RequestID, template.OpCreate)
		if err != nil {
			return err
		}
		if found {
			j = old
			return sameRequest(old, stored)
		}
		if j, found, err = joined(ctx, tx, req, stored, fresh.SpecKey); err != nil || found {
			return err
		}
		if err := m.checkRows(ctx, tx, req); err != nil {
			return err
		}
		if private { // before the commit, so that whoever hands it over finds them
			if err := m.lend(fresh.ID, creds); err != nil {
				return err
			}
		}
		j, err = templatedb.AddJob(ctx, tx, fresh)
		if errors.Is(err, fault.Exists) {
			return fault.VersionConflict // the twin of this request was committed meanwhile: look again
		}
		if err == nil {
			err = errors.Join(audit(ctx, tx, actTemplateCreate, string(j.TemplateID), "job", string(j.ID), "image", j.ImageRef, "alias", j.Alias),
				say(ctx, tx, j.ID, "queued with priority %d: %s as template %s", j.Priority, j.ImageRef, j.TemplateID))
		}
		if err != nil || private {
			return err
		}
		return tx.Enqueue(ctx, store.Message{Topic: topicBuild, Key: string(j.ID), Trace: traceOf(ctx)}, 0)
	})
	if err != nil || j.ID != fresh.ID {
		m.forget(fresh.ID)
		return j, err
	}
	if err := m.step("master.submit.after_commit"); err != nil {
		return j, err
	}
	if private {
		m.background(ctx, func(ctx context.Context) { m.handPrivate(ctx, fresh.ID) })
	}
	m.deliverSoon(topicBuild)
	return j, nil
}

// specKey stands for all that makes a template what it is: two requests of one
// key would make two of the same.
func specKey(req cubeapi.FromImageRequest) ([]byte, error) {
	req.RequestID, req.Alias, req.Priority, req.DistributionScope = "", "", 0, nil
	b, err := json.Marshal(req)
	sum := sha256.Sum256(b)
	return sum[:], err
}

// joined returns the job that is at work already on what req asks for: at most
// one is per template spec (spec section 3.7). The request id is noted as one of
// that job's, so that it is answered the same when the job is over. A request
// that wants the same made otherwise, as to name, hosts or turn, is refused.
func joined(ctx context.Context, tx *store.Tx, req cubeapi.FromImageRequest, stored, key []byte) (j template.Job, found bool, err error) {
	errNone := errors.New("no job to join")
	sum := sha256.Sum256(stored)
	id, err := tx.Once(ctx, store.Submission{ID: req.RequestID, Holder: joinedHolder, Fingerprint: sum[:]}, func() ([]byte, error) {
		first, active, err := templatedb.JobBySpec(ctx, tx, key)
		switch {
		case err != nil:
			return nil, err
		case !active:
			return nil, errNone
		}
		same, err := sameBut(first.Request, stored)
		if err == nil && !same {
			err = fault.New(fault.BuildInProgress, "job %s makes a template of the same spec, with another alias, scope or priority", first.ID)
		}
		return []byte(first.ID), err
	})
	if errors.Is(err, errNone) {
		return j, false, nil
	}
	if err != nil {
		return j, false, err
	}
	j, err = templatedb.GetJob(ctx, tx, template.JobID(id))
	if errors.Is(err, fault.JobNotFound) { // deleted since, with its template
		return j, false, tx.Forget(ctx, joinedHolder, req.RequestID, id)
	}
	return j, err == nil, err
}

// sameBut reports whether two stored requests differ in nothing but their id.
func sameBut(a, b []byte) (bool, error) {
	x, err := keptOf(a)
	if err != nil {
		return false, err
	}
	y, err := keptOf(b)
	if err != nil {
		return false, err
	}
	x.RequestID, y.RequestID = "", ""
	return reflect.DeepEqual(x, y), nil
}

func sameRequest(old template.Job, stored []byte) error {
	if string(old.Request) != string(stored) {
		return fault.New(fault.SubmissionReused, "request %s, which asked for job %s", old.RequestID, old.ID)
	}
	return nil
}

// checkRows refuses what the rows rule out already: a kind that no host serves, a
// host of the scope that is unknown or not healthy. It is looked at again at the
// end, since a build takes its time.
func (m *Master) checkRows(ctx context.Context, tx *store.Tx, req cubeapi.FromImageRequest) error {
	if err := m.checkKind(ctx, tx, req.InstanceType); err != nil || len(req.DistributionScope) == 0 {
		return err
	}
	all, err := sandboxdb.ListHosts(ctx, tx)
	if err == nil {
		_, err = m.inScope(all, req, tx.Now)
	}
	return err
}
