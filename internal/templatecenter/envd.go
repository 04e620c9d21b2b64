package templatecenter

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"runtime"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/template"
)

// checkEnvd refuses an agent that is not the one that the job stored.
func (c *Center) checkEnvd(req cubeapi.TCBuildRequest) error {
	if req.Request.EnvdSHA256 == "" && len(req.EnvdData) == 0 {
		return nil
	}
	sum := sha256.Sum256(req.EnvdData)
	if hex.EncodeToString(sum[:]) != req.Request.EnvdSHA256 {
		return fault.New(fault.InvalidInput, "envd_data of job %s has not the sha256 that the job stored", req.JobID)
	}
	return template.CheckGuest(bytes.NewReader(req.EnvdData), runtime.GOARCH)
}

// roomFor reports whether an agent of so many bytes may wait, too. The caller has
// the lock.
func (q *queue) roomFor(n int) bool {
	for _, h := range q.handed {
		n += len(h.envd)
	}
	return template.RoomForGuests(n, q.c.cfg.TemplateCenter.MaxEnvdMiB)
}

// guest is the agent that a job puts into its image: the usual one, or the job's
// own as a file without a name, which goes when it is closed.
func (c *Center) guest(req cubeapi.FromImageRequest, given []byte) (path string, done func() error, err error) {
	if req.EnvdSHA256 == "" {
		return c.cfg.TemplateCenter.GuestBinary, func() error { return nil }, nil
	}
	if len(given) == 0 {
		return "", nil, fault.New(fault.CredentialsLost, "the agent with sha256 %s", req.EnvdSHA256)
	}
	f, err := os.CreateTemp(c.cfg.TemplateCenter.WorkDir, "envd-")
	if err != nil {
		return "", nil, fault.Wrap(fault.DiskFull, err, "envd in templatecenter.work_dir %s", c.cfg.TemplateCenter.WorkDir)
	}
	err = os.Remove(f.Name())
	if err == nil {
		_, err = f.Write(given)
	}
	if err != nil {
		_ = f.Close() // it has no name, and is of no use
		return "", nil, fault.Wrap(fault.DiskFull, err, "envd in templatecenter.work_dir %s", c.cfg.TemplateCenter.WorkDir)
	}
	return fmt.Sprintf("/proc/self/fd/%d", f.Fd()), f.Close, nil
}
