package templatecenter_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
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

func withAgent(sha string) func(*cubeapi.FromImageRequest) {
	return func(q *cubeapi.FromImageRequest) { q.EnvdSHA256 = sha }
}

// A job's own agent is put in, in place of the usual one, and is part of what the
// bytes and the template are named after.
func TestAnAgentOfTheJobsOwn(t *testing.T) {
	databases(t, func(t *testing.T, db *store.Store) {
		r := newRig(t, db, nil)
		ref := r.image("app", "1")
		usual := r.built(ref)
		program := agent("an agent of its own")
		sum := sha256.Sum256([]byte(program))
		b := r.job(ref, withAgent(hex.EncodeToString(sum[:])))
		wrong := b
		wrong.EnvdData = []byte(agent("another"))
		if err := r.client.Build(t.Context(), wrong); !errors.Is(err, fault.InvalidInput) {
			t.Errorf("another agent than the job's: %v", err)
		}
		if err := r.client.Build(t.Context(), b); !errors.Is(err, fault.InvalidInput) {
			t.Errorf("no agent: %v", err)
		}
		b.EnvdData = []byte(program)
		r.submit(b)
		out := r.master.outcome(b.JobID)
		if out.Status != cubeapi.StatusBuilt || out.ContentKey == usual.ContentKey || out.SpecFingerprint == usual.SpecFingerprint || out.ArtifactID == usual.ArtifactID {
			t.Fatalf("outcome %+v, beside %+v", out, usual)
		}
		image, err := os.ReadFile(out.Ext4Path)
		if err != nil || !bytes.Contains(image, []byte("an agent of its own")) {
			t.Errorf("the image has it not: %v", err)
		}
		if left, err := filepath.Glob(filepath.Join(r.deps.Config.TemplateCenter.WorkDir, "envd-*")); err != nil || len(left) > 0 || r.center.Keeps() != 0 {
			t.Errorf("left: %v %v", left, err)
		}
	})
}
