package master

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	// templateWait is how long a create of a template waits for its hosts. Its
	// job goes on behind.
	templateWait   = 10 * time.Minute
	longestLook    = 250 * time.Millisecond
	runtimeHandler = "cube"
	namespace      = "default"
	mediaExt4      = "ext4"
	versionTwo     = "v2"
)

// serveTemplateCreate makes a template of an artifact that is there, and
// answers when its hosts have it.
func (m *Master) serveTemplateCreate(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.TemplateCreateRequest
	unknown, err := serve.ReadJSONWarn(r, maxBody, &req)
	if err == nil && len(unknown) > 0 {
		err = fault.New(fault.Unsupported, "%s: a template has no such field", strings.Join(unknown, ", "))
	}
	answer := cubeapi.TemplateAnswer{}
	if err == nil {
		req.RequestID = named(r, req.RequestID)
		var j template.Job
		if j, err = m.createTemplate(r.Context(), req); err == nil {
			err = m.db.View(r.Context(), func(tx *store.Tx) error {
				d, err := templatedb.GetDefinition(r.Context(), tx, j.TemplateID)
				if err == nil {
					answer.Template, err = showWhole(r.Context(), tx, d, true)
				}
				return err
			})
		}
		if j.Error != "" {
			answer.Warnings = []string{j.Error}
		}
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	warned := answer.Warnings
	answer.Envelope = cubeapi.OK(req.RequestID)
	answer.Warnings = warned
	serve.WriteJSON(w, http.StatusOK, answer)
}

// createTemplate submits a job that begins where a build would have ended, and
// waits for its end. So everything that holds for a built template holds for
// this one: a crash, a delete, a redo.
func (m *Master) createTemplate(ctx context.Context, req cubeapi.TemplateCreateRequest) (template.Job, error) {
	k, err := asBuild(req)
	if err == nil {
		err = normaliseSpec(&k.FromImageRequest)
	}
	if err != nil {
		return template.Job{}, err
	}
	j, err := m.storeCreate(ctx, k)
	if err != nil {
		return j, err
	}
	if err := m.step("master.template.after_commit"); err != nil {
		return j, err
	}
	if j.State == template.JobDistributing {
		m.resumeSoon(ctx, j.ID)
	}
	return m.awaitJob(ctx, j.ID)
}

// storeCreate stores the job. The same request again returns the job of the
// first.
func (m *Master) storeCreate(ctx context.Context, k kept) (j template.Job, err error) {
	fresh := template.Job{
		ID: template.JobID(id.New(template.JobPrefix)), TemplateID: template.ID(id.New(template.IDPrefix)), RequestID: k.RequestID, Operation: template.OpCreate, AttemptNo: 1,
		Alias: k.Alias, Phase: template.PhaseDistributing, ArtifactID: template.ArtifactID(k.ArtifactID), PhaseTimes: template.PhaseTimes{},
	}
	err = m.update(ctx, func(tx *store.Tx) (err error) {
		old, found, err := templatedb.JobByRequest(ctx, tx, k.RequestID, template.OpCreate)
		if err != nil {
			return err
		}
		if found {
			j = old
			return sameCreate(old, k)
		}
		a, err := templatedb.GetArtifact(ctx, tx, fresh.ArtifactID)
		if err == nil {
			err = servable(a)
		}
		if err == nil {
			err = fits(k, a)
		}
		if err != nil {
			return err
		}
		k := k
		k.SourceImageRef = a.ImageRef
		fresh.ImageRef, fresh.Digest = a.ImageRef, a.Digest
		if fresh.Request, err = json.Marshal(k); err != nil {
			return err
		}
		if err := m.checkRows(ctx, tx, k.FromImageRequest); err != nil {
			return err
		}
		all, err := sandboxdb.ListHosts(ctx, tx)
		if err != nil {
			return err
		}
		hosts, err := m.inScope(all, k.FromImageRequest, tx.Now)
		if err != nil {
			return err
		}
		// Whoever takes the artifact for unused must look again.
		if _, err := templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactStored); err != nil {
			return err
		}
		if j, err = templatedb.AddJob(ctx, tx, fresh); errors.Is(err, fault.Exists) {
			return fault.VersionConflict // the twin of this request was committed meanwhile: look again
		}
		if err != nil {
			return err
		}
		enter(&j, template.PhaseDistributing, progressDistributing, tx)
		j.Expected = len(hosts)
		if j, err = templatedb.MoveJob(ctx, tx, j, template.OnJobResumed); err != nil {
			return err
		}
		return errors.Join(audit(ctx, tx, actTemplateCreate, string(j.TemplateID), "job", string(j.ID), "artifact", string(a.ID), "alias", j.Alias),
			say(ctx, tx, j.ID, "made of artifact %s as template %s", a.ID, j.TemplateID))
	})
	return j, err
}

// sameCreate refuses another request under the id of an earlier one. Where the
// artifact came from is no part of it.
func sameCreate(old template.Job, k kept) error {
	was, err := keptOf(old.Request)
	if err != nil {
		return err
	}
	k.SourceImageRef = was.SourceImageRef
	stored, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return sameRequest(old, stored)
}

// awaitJob waits for a job's end. One that failed is its fault.
func (m *Master) awaitJob(ctx context.Context, id template.JobID) (template.Job, error) {
	ctx, cancel := context.WithTimeout(ctx, templateWait)
	defer cancel()
	for pause := firstDelay; ; pause = min(2*pause, longestLook) {
		j, err := m.job(ctx, id)
		switch {
		case ctx.Err() != nil:
			return j, fault.Wrap(fault.Deadline, ctx.Err(), "job %s goes on", id)
		case err != nil:
			return j, err
		case j.State == template.JobFailed:
			return j, fault.FromName(j.ErrorCode, 0, fmt.Sprintf("job %s: %s", id, strings.TrimSuffix(j.Error, ": "+j.ErrorCode)))
		case j.State == template.JobReady:
			return j, nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// asBuild reads a whole create request as a build request of which the bytes
// are there, and refuses what none of the two has.
func asBuild(r cubeapi.TemplateCreateRequest) (k kept, err error) {
	if err := checkWhole(r); err != nil {
		return k, err
	}
	c := r.Containers[0]
	o := c.ContainerOverride
	k.Labels, k.ArtifactID, k.claims = r.Labels, c.Image.Image, c.Image.Annotations
	k.FromImageRequest = cubeapi.FromImageRequest{
		RequestID: r.RequestID, Alias: r.Alias, DisplayName: r.DisplayName, InstanceType: r.InstanceType, NetworkType: r.NetworkType, DistributionScope: r.Scope,
		Network: r.Network, OldNetwork: r.OldNetwork, WritableLayerSize: c.Image.WritableLayerSize,
	}
	// The writable layer may be told of at four places, which must agree.
	for place, size := range map[string]string{"annotations": r.Annotations[cubeapi.AnnotationWritable], "image.annotations": c.Image.Annotations[cubeapi.AnnotationWritable], "volumes": ""} {
		if place == "volumes" {
			if size, err = rootfsVolume(r.Volumes); err != nil {
				return k, err
			}
		}
		if k.WritableLayerSize, err = oneOf("writable_layer_size", k.WritableLayerSize, place, size); err != nil {
			return k, err
		}
	}
	o.VolumeMounts = slices.DeleteFunc(slices.Clone(o.VolumeMounts), func(v cubeapi.VolumeMount) bool {
		return v.Name == cubeapi.VolumeRootfs && path.Clean(v.ContainerPath) == "/"
	})
	if len(o.VolumeMounts) == 0 {
		o.VolumeMounts = nil
	}
	if k.ExposedPorts, err = portsOf(r.Annotations[cubeapi.AnnotationPorts]); err != nil {
		return k, err
	}
	if o.Annotations, err = annotationsOf(r.Annotations, o.Annotations); err != nil {
		return k, err
	}
	k.Overrides = &o
	return k, nil
}

func checkWhole(r cubeapi.TemplateCreateRequest) error {
	switch {
	case r.SnapshotDir != "":
		return fault.New(fault.Unsupported, "snapshot_dir: templates are made of artifacts, not of snapshots")
	case len(r.Containers) != 1:
		return fault.New(fault.InvalidInput, "%d containers: a sandbox has one", len(r.Containers))
	case r.InsID != "" || r.InsIP != "":
		return fault.New(fault.Unsupported, "ins_id, ins_ip: name hosts in distribution_scope")
	case r.Timeout != nil && *r.Timeout != forever && *r.Timeout != 0:
		return fault.New(fault.Unsupported, "timeout %d: a template has none; say it when a sandbox is made", *r.Timeout)
	case r.RuntimeHandler != "" && r.RuntimeHandler != runtimeHandler:
		return fault.New(fault.Unsupported, "runtime_handler %.64q: %s is the only one", r.RuntimeHandler, runtimeHandler)
	case r.Namespace != "" && r.Namespace != namespace:
		return fault.New(fault.Unsupported, "namespace %.64q: %s is the only one", r.Namespace, namespace)
	}
	image := r.Containers[0].Image
	if err := template.CheckID(image.Image); err != nil {
		return fault.Wrap(fault.InvalidInput, err, "containers[0].image.image: must be the id of an artifact; a template of an image is made with %s", cubeapi.PathFromImage)
	}
	if image.StorageMedia != "" && image.StorageMedia != mediaExt4 {
		return fault.New(fault.Unsupported, "storage_media %.64q: %s is the only one", image.StorageMedia, mediaExt4)
	}
	for key := range image.Annotations {
		switch key {
		case cubeapi.AnnotationArtifact, cubeapi.AnnotationSHA256, cubeapi.AnnotationSize, cubeapi.AnnotationWritable:
		default:
			return fault.New(fault.Unsupported, "image.annotations %.128q", key)
		}
	}
	return checkLabels(r.Labels)
}

func checkLabels(labels map[string]string) error {
	if len(labels) > maxAnnotations {
		return fault.New(fault.InvalidInput, "%d labels, at most %d", len(labels), maxAnnotations)
	}
	for name, v := range labels {
		if name == "" || len(name)+len(v) > maxAnnotation || !isName(name) || !isText(v) {
			return fault.New(fault.InvalidInput, "label %.64q: name and value are text, of at most %d bytes", name, maxAnnotation)
		}
	}
	return nil
}

// fits refuses a request that means other bytes than the artifact has.
func fits(k kept, a template.Artifact) error {
	for key, have := range map[string]string{cubeapi.AnnotationArtifact: string(a.ID), cubeapi.AnnotationSHA256: a.SHA256, cubeapi.AnnotationSize: strconv.FormatInt(a.SizeBytes, 10)} {
		if want, said := k.claims[key]; said && want != have {
			return fault.New(fault.InvalidInput, "%s %.128q: artifact %s has %s", key, want, a.ID, have)
		}
	}
	return nil
}

// rootfsVolume returns the size of the writable layer, and refuses any other
// volume.
func rootfsVolume(volumes []cubeapi.Volume) (size string, err error) {
	for _, v := range volumes {
		dir, ok := v.Source["empty_dir"]
		if v.Name != cubeapi.VolumeRootfs || !ok || len(v.Source) > 1 {
			return "", fault.New(fault.Unsupported, "volumes %.64q: sandboxes have no volume but %s, an empty_dir", v.Name, cubeapi.VolumeRootfs)
		}
		var e cubeapi.EmptyDir
		if err := json.Unmarshal(dir, &e); err != nil {
			return "", fault.Wrap(fault.InvalidInput, err, "volumes %s: empty_dir", v.Name)
		}
		if left := serve.Unknown(dir, e); e.Medium != 0 || len(left) > 0 {
			return "", fault.New(fault.Unsupported, "volumes %s: empty_dir has a size_limit and the medium 0 only", v.Name)
		}
		if size, err = oneOf("size_limit", size, "size_limit", e.SizeLimit); err != nil {
			return "", err
		}
	}
	return size, nil
}

func portsOf(list string) (ports []int, err error) {
	for _, s := range strings.FieldsFunc(list, func(r rune) bool { return r == ':' }) {
		p, err := strconv.Atoi(s)
		if err != nil {
			return nil, fault.New(fault.InvalidInput, "%s %.128q: ports are joined by colons, such as 80:443", cubeapi.AnnotationPorts, list)
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// annotationsOf returns the annotations that are kept: those that would ask for
// something are heard or refused.
func annotationsOf(list, more map[string]string) (map[string]string, error) {
	all := map[string]string{}
	for name, v := range more {
		all[name] = v
	}
	for name, v := range list {
		switch {
		case name == cubeapi.AnnotationPorts || name == cubeapi.AnnotationWritable:
		case (name == cubeapi.AnnotationVersion || name == cubeapi.AnnotationVersion2) && v == versionTwo:
		case strings.HasPrefix(name, "cube.") || strings.HasPrefix(name, "com.cube.") || strings.HasPrefix(name, "com.node") || strings.HasPrefix(name, "com.netid") || name == "host-mount":
			return nil, fault.New(fault.Unsupported, "annotations %.128q", name)
		default:
			all[name] = v
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	return all, nil
}
