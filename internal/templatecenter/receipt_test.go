package templatecenter_test

import (
	"os"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs"
)

// receipt returns the receipt of an artifact, which must be there.
func (r *rig) receipt(artifactID string) *rootfs.Receipt {
	r.t.Helper()
	body, err := r.client.Receipt(r.t.Context(), artifactID)
	if err != nil {
		r.t.Fatal(err)
	}
	defer body.Close()
	got, err := rootfs.ReadReceipt(body)
	if err != nil {
		r.t.Fatal(err)
	}
	return got
}

func TestAnArtifactHasAReceipt(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	out := r.built(r.image("app", "1"))
	got := r.receipt(out.ArtifactID)
	if got.SHA256 != out.Ext4SHA256 || got.SizeBytes != out.Ext4SizeBytes || got.ContentKey != out.ContentKey || got.Digest != out.SourceImageDigest || len(got.Layers) != 1 || len(got.Chunks) == 0 || len(got.Injected) == 0 {
		t.Errorf("receipt %+v", got)
	}
	// It says of the bytes what they are.
	f, err := os.Open(out.Ext4Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sums, err := rootfs.SumImage(t.Context(), f, out.Ext4SizeBytes)
	if err != nil || sums.SHA256 != got.SHA256 || len(sums.Chunks) != len(got.Chunks) {
		t.Errorf("the bytes have %+v, %v", sums, err)
	}
}

func TestAReceiptThatIsNotThere(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	out := r.built(r.image("app", "1"))
	path := out.Ext4Path[:len(out.Ext4Path)-len(".ext4")] + ".receipt.json"
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		id, token string
		code      *fault.Code
	}{
		"lost":        {out.ArtifactID, token, fault.ArtifactNotFound},
		"unknown":     {"rfs-000000000000000000000000", token, fault.ArtifactNotFound},
		"no id":       {"", token, fault.InvalidInput},
		"bad id":      {"../x", token, fault.InvalidInput},
		"wrong token": {out.ArtifactID, "guess", fault.TokenRejected},
	} {
		t.Run(name, func(t *testing.T) {
			body, err := cubeapi.NewCenterClient(r.url, c.token).Receipt(t.Context(), c.id)
			if fault.Of(err) != c.code {
				t.Errorf("error %v, want %s", err, c.code.Name)
			}
			if err == nil {
				_ = body.Close()
			}
		})
	}
}
