package master_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// fakeCenter is a template centre without a builder: it takes jobs, tells the
// master of them over real HTTP, hands out bytes and lets them go.
type fakeCenter struct {
	t      *testing.T
	front  *face
	report *cubeapi.ReportClient
	db     *store.Store // for the one row that is the centre's to remove

	mu      sync.Mutex
	taken   []cubeapi.TCBuildRequest
	deleted []string
	bytes   map[string][]byte // by artifact id
	kept    int               // how often a delete was refused

	// Knobs.
	refuse    error        // answers a build so
	loseReply bool         // takes a build and breaks off
	slowReply bool         // takes a build, ends it, and breaks off
	idle      bool         // takes a build and does nothing
	keep      error        // answers a delete so
	flavour   string       // makes equal images other bytes
	stating   error        // answers a question for bytes so
	elsewhere bool         // absent bytes are in another store
	statingOf string       // only of this artifact
	legacy    bool         // the bytes are in the directory of before
	moving    func() error // before bytes are moved
	moves     int
}

func newFakeCenter(t *testing.T, masterURL string) *fakeCenter {
	c := &fakeCenter{t: t, front: newFace(t), report: cubeapi.NewReportClient(masterURL, callbackToken), bytes: map[string][]byte{}}
	mux := http.NewServeMux()
	token := auth.RequireToken(cubeapi.HeaderCallbackToken, callbackToken, false)
	mux.Handle("POST "+cubeapi.PathTCBuild, token(http.HandlerFunc(c.build)))
	mux.Handle("POST "+cubeapi.PathTCArtifactDelete, token(http.HandlerFunc(c.remove)))
	mux.Handle("GET "+cubeapi.PathTCReceipt, token(http.HandlerFunc(c.receipt)))
	mux.Handle("GET "+cubeapi.PathTCArtifactStat, token(http.HandlerFunc(c.stat)))
	mux.Handle("POST "+cubeapi.PathTCArtifactMove, token(http.HandlerFunc(c.move)))
	mux.Handle("POST "+cubeapi.PathTCArtifactUpload, token(http.HandlerFunc(c.upload)))
	mux.HandleFunc("GET "+cubeapi.PathArtifactDownload, c.download)
	c.front.show(mux)
	return c
}

// set turns knobs.
func (c *fakeCenter) set(turn func(*fakeCenter)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	turn(c)
}

func (c *fakeCenter) builds() []cubeapi.TCBuildRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]cubeapi.TCBuildRequest(nil), c.taken...)
}

func (c *fakeCenter) refusals() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept
}

func (c *fakeCenter) removed() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.deleted...)
}

func (c *fakeCenter) build(w http.ResponseWriter, r *http.Request) {
	var q cubeapi.TCBuildRequest
	if err := serve.ReadJSON(r, 1<<24, &q); err != nil {
		serve.WriteError(w, r, err)
		return
	}
	c.mu.Lock()
	refuse, lose, slow, idle := c.refuse, c.loseReply, c.slowReply, c.idle
	again := false
	for _, have := range c.taken {
		again = again || have.JobID == q.JobID
	}
	if refuse == nil {
		c.taken = append(c.taken, q)
	}
	c.mu.Unlock()
	if refuse == nil && again {
		refuse = c.inHand(r.Context(), template.JobID(q.JobID))
	}
	if refuse != nil {
		serve.WriteError(w, r, refuse)
		return
	}
	switch {
	case slow && !again:
		c.work(q)
	case !again && !idle:
		go c.work(q)
	}
	if lose || slow {
		panic(http.ErrAbortHandler)
	}
	serve.WriteJSON(w, http.StatusOK, cubeapi.TCAnswer{Status: "accepted", JobID: q.JobID})
}

// inHand is the answer to a job that was taken before.
func (c *fakeCenter) inHand(ctx context.Context, id template.JobID) error {
	return c.db.View(ctx, func(tx *store.Tx) error {
		j, err := templatedb.GetJob(ctx, tx, id)
		switch {
		case err != nil:
			return err
		case j.State != template.JobQueued && j.State != template.JobBuilding:
			return fault.New(fault.JobNotFound, "job %s is %s", id, j.State)
		}
		return fault.New(fault.BuildInProgress, "job %s", id)
	})
}

// work reports what a build reports. It goes on while the master is away.
func (c *fakeCenter) work(q cubeapi.TCBuildRequest) {
	for _, rep := range []cubeapi.JobReport{
		{Status: "RUNNING", Phase: "PULLING", Progress: 5, PullTotalBytes: 100, PullDoneBytes: 10, PullTotalLayers: 2},
		{Status: "RUNNING", Phase: "UNPACKING", Progress: 20},
		{Status: "RUNNING", Phase: "BUILDING_EXT4", Progress: 40},
		{Status: "RUNNING", Phase: "STORING", Progress: 60},
		c.built(q),
	} {
		if c.tell(q.JobID, rep) != nil {
			return
		}
	}
}

func (c *fakeCenter) tell(job string, rep cubeapi.JobReport) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if err = c.report.Job(ctx, job, rep); err == nil || !fault.Of(err).Class.Retry && !errors.Is(err, fault.Bug) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return err
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// built is the report of a finished build, whose bytes are from then on there.
// Equal images give equal bytes.
func (c *fakeCenter) built(q cubeapi.TCBuildRequest) cubeapi.JobReport {
	ref, _, _ := strings.Cut(q.Request.SourceImageRef, "@") // a pinned one is of the same image
	c.mu.Lock()
	ref += c.flavour
	key := sum([]byte(ref))
	id := string(template.ArtifactIDOf(key))
	data := bytes.Repeat([]byte(ref+"\n"), 4096)
	c.bytes[id] = data
	c.mu.Unlock()
	return cubeapi.JobReport{
		Status: "BUILT", TemplateID: q.TemplateID, ArtifactID: id, ContentKey: key, SourceImageDigest: "sha256:" + key, SpecFingerprint: sum([]byte("spec of " + key)),
		Ext4SHA256: sum(data), Ext4SizeBytes: int64(len(data)), StorageBackend: "dir", ObjectKey: id + ".ext4", Ext4Path: "/artifacts/" + id + ".ext4",
		ImageConfig: &cubeapi.ImageConfig{Cmd: []string{"bash"}, Env: []string{"PATH=/opt/bin:/bin", "LANG=C.UTF-8"}, WorkingDir: "/srv", User: "worker"},
	}
}

// receipt says which bytes an artifact has.
func (c *fakeCenter) receipt(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	data, ok := c.bytes[r.URL.Query().Get("artifact_id")]
	c.mu.Unlock()
	if !ok {
		serve.WriteError(w, r, fault.New(fault.ArtifactNotFound, "receipt"))
		return
	}
	serve.WriteJSON(w, http.StatusOK, map[string]string{"sha256": sum(data)})
}

func (c *fakeCenter) remove(w http.ResponseWriter, r *http.Request) {
	var q cubeapi.TCDeleteRequest
	err := serve.ReadJSON(r, 1<<20, &q)
	c.mu.Lock()
	keep := c.keep
	if keep != nil {
		c.kept++
	}
	c.mu.Unlock()
	if err == nil {
		err = keep
	}
	if err == nil {
		err = c.removeRow(r.Context(), template.ArtifactID(q.ArtifactID))
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deleted = append(c.deleted, q.ArtifactID)
	delete(c.bytes, q.ArtifactID)
	serve.WriteJSON(w, http.StatusOK, cubeapi.TCAnswer{Status: "deleted", ArtifactID: q.ArtifactID})
}

func (c *fakeCenter) removeRow(ctx context.Context, id template.ArtifactID) error {
	return c.db.Update(ctx, func(tx *store.Tx) error {
		a, err := templatedb.GetArtifact(ctx, tx, id)
		switch {
		case errors.Is(err, fault.ArtifactNotFound):
			return nil
		case err != nil:
			return err
		case a.State != template.ArtifactDeleting:
			return fault.New(fault.StateConflict, "artifact %s is %s", id, a.State)
		}
		return templatedb.RemoveArtifact(ctx, tx, a)
	})
}

// download answers whoever has any token: that the token is right is the real
// template centre's to check.
func (c *fakeCenter) download(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("artifact_id")
	c.mu.Lock()
	data, ok := c.bytes[id]
	c.mu.Unlock()
	switch {
	case r.Header.Get(cubeapi.HeaderArtifactToken) == "":
		serve.WriteError(w, r, fault.New(fault.TokenRejected, "download of %s", id))
	case !ok:
		serve.WriteError(w, r, fault.New(fault.ArtifactNotFound, "artifact %s", id))
	default:
		w.Header().Set(cubeapi.HeaderArtifactID, id)
		http.ServeContent(w, r, "", time.Unix(0, 0), bytes.NewReader(data))
	}
}
