package master_test

import (
	"io"
	"net/http"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// jobs counts the jobs that the centre was handed. One that waits long is handed
// over again, and counts once.
func (c *fakeCenter) jobs() int {
	seen := map[string]bool{}
	for _, b := range c.builds() {
		seen[b.JobID] = true
	}
	return len(seen)
}

// shown is what the centre says of an artifact's bytes. Once they are moved its
// store is s3.
func (c *fakeCenter) shown(id, status string) (cubeapi.TCArtifactAnswer, error) {
	data, ok := c.bytes[id]
	if !ok {
		if c.elsewhere {
			return cubeapi.TCArtifactAnswer{}, fault.New(fault.BytesElsewhere, "artifact %s", id)
		}
		return cubeapi.TCArtifactAnswer{}, fault.New(fault.ArtifactNotFound, "artifact %s", id)
	}
	a := cubeapi.TCArtifactAnswer{Status: status, ArtifactID: id, Backend: "dir", ObjectKey: id + ".ext4", SizeBytes: int64(len(data)), Legacy: c.legacy}
	if c.legacy || c.moves > 0 {
		a.Backend = "s3"
	}
	return a, nil
}

func (c *fakeCenter) stat(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("artifact_id")
	c.mu.Lock()
	defer c.mu.Unlock()
	a, err := c.shown(id, cubeapi.BytesThere)
	if c.stating != nil && (c.statingOf == "" || c.statingOf == id) {
		err = c.stating
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	if r.URL.Query().Get("verify") == "true" {
		a.SHA256 = sum(c.bytes[id])
	}
	serve.WriteJSON(w, http.StatusOK, a)
}

func (c *fakeCenter) move(w http.ResponseWriter, r *http.Request) {
	var q cubeapi.TCArtifactRequest
	err := serve.ReadJSON(r, 1<<20, &q)
	c.mu.Lock()
	before := c.moving
	c.mu.Unlock()
	if err == nil && before != nil {
		err = before()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	status := cubeapi.BytesReused
	if c.legacy && c.bytes[q.ArtifactID] != nil {
		status, c.legacy = cubeapi.BytesUploaded, false
		c.moves++
	}
	a, absent := c.shown(q.ArtifactID, status)
	if err == nil {
		err = absent
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, a)
}

func (c *fakeCenter) upload(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseMultipartForm(1 << 20); err != nil {
		serve.WriteError(w, r, err)
		return
	}
	f, _, err := r.FormFile("file")
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	id := r.FormValue("artifact_id")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes[id] = data
	c.moves++
	a, _ := c.shown(id, cubeapi.BytesUploaded)
	a.SHA256 = sum(data)
	serve.WriteJSON(w, http.StatusOK, a)
}
