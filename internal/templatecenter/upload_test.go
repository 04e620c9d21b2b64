package templatecenter_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
	"github.com/paddock-dev/paddock/internal/templatecenter"
	"github.com/paddock-dev/paddock/test/service"
)

// toS3 makes a centre keep its bytes in s3. Its directory stays what it was.
func toS3(s3 service.S3Config) func(*templatecenter.Deps) {
	return func(d *templatecenter.Deps) {
		d.Config.ArtifactStore.Backend = "s3"
		d.Config.ArtifactStore.S3 = config.S3{Endpoint: s3.Endpoint, Bucket: s3.Bucket, AccessKey: config.Secret(s3.AccessKey), SecretKey: config.Secret(s3.SecretKey), Region: s3.Region, PathStyle: true, Prefix: "art"}
	}
}

func (r *rig) artifact(id string) (a template.Artifact) {
	r.t.Helper()
	r.update(func(ctx context.Context, tx *store.Tx) (err error) {
		a, err = templatedb.GetArtifact(ctx, tx, template.ArtifactID(id))
		return err
	})
	return a
}

// fetch returns an artifact's bytes as a host gets them.
func (r *rig) fetch(id string) []byte {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.url+cubeapi.PathArtifactDownload+"?artifact_id="+id, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set(cubeapi.HeaderArtifactToken, r.ticket(id))
	a, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil || a.StatusCode != http.StatusOK {
		r.t.Fatalf("status %d, %v", a.StatusCode, err)
	}
	return b
}

func refused(t *testing.T, err error, code *fault.Code) {
	t.Helper()
	if err == nil || fault.Of(err) != code {
		t.Fatalf("got %v, want %s", err, code.Name)
	}
}

// After a change from a directory to S3 templates are served from the directory
// until they are moved; the copy there goes when the row says S3, and not before.
func TestBytesMoveFromADirectoryToS3(t *testing.T) {
	databases(t, func(t *testing.T, db *store.Store) {
		r := newRig(t, db, nil)
		made := r.built(r.image("moves:1", "app"))
		data := r.fetch(made.ArtifactID)
		dir := r.deps.Config.ArtifactStore.Dir
		r.stop()
		s3 := service.S3(t)
		toS3(s3)(&r.deps)
		r.start()
		if !bytes.Equal(r.fetch(made.ArtifactID), data) {
			t.Error("other bytes before the move")
		}
		s, err := r.client.StatArtifact(t.Context(), made.ArtifactID, true)
		if err != nil || !s.Legacy || s.Backend != "s3" || s.SizeBytes != made.Ext4SizeBytes || s.SHA256 != made.Ext4SHA256 {
			t.Errorf("%+v %v", s, err)
		}
		// An equal build finds it where it is.
		if again := r.built(r.image("moves:1", "app")); !again.Reused {
			t.Errorf("built again: %+v", again)
		}
		for n, want := range []string{cubeapi.BytesUploaded, cubeapi.BytesReused} {
			s, err = r.client.MoveArtifact(t.Context(), made.ArtifactID)
			if err != nil || s.Status != want || s.Backend != "s3" || s.SizeBytes != made.Ext4SizeBytes {
				t.Errorf("move %d: %+v %v", n, s, err)
			}
		}
		if left := names(t, dir); !slices.Contains(left, made.ArtifactID+".ext4") {
			t.Errorf("the copy went before the row was changed: %v", left)
		}
		r.update(func(ctx context.Context, tx *store.Tx) error {
			a, err := templatedb.GetArtifact(ctx, tx, template.ArtifactID(made.ArtifactID))
			if err != nil {
				return err
			}
			a.Backend, a.Location = s.Backend, s.ObjectKey
			_, err = templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactStored)
			return err
		})
		if s, err = r.client.MoveArtifact(t.Context(), made.ArtifactID); err != nil || s.Status != cubeapi.BytesReused {
			t.Errorf("%+v %v", s, err)
		}
		if left := names(t, dir); len(left) != 0 {
			t.Errorf("left in the directory: %v", left)
		}
		if s, err = r.client.StatArtifact(t.Context(), made.ArtifactID, true); err != nil || s.Legacy || s.SHA256 != made.Ext4SHA256 {
			t.Errorf("%+v %v", s, err)
		}
		receipt, err := r.client.Receipt(t.Context(), made.ArtifactID)
		if err != nil {
			t.Fatal("the receipt did not move along: ", err)
		}
		_ = receipt.Close()
		if got := r.fetch(made.ArtifactID); !bytes.Equal(got, data) {
			t.Error("other bytes after the move")
		}
	})
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == ".store-id" { // a store is never without it
			continue
		}
		list = append(list, e.Name())
	}
	return list
}

// What is not the artifact is not moved, and what is not here is told from what
// cannot be seen from here.
func TestAMoveLooksAtWhatItMoves(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	made := r.built(r.image("looks:1", "app"))
	file := filepath.Join(r.deps.Config.ArtifactStore.Dir, made.ArtifactID+".ext4")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r.stop()
	s3 := service.S3(t)
	toS3(s3)(&r.deps)
	r.start()
	for what, spoiled := range map[string][]byte{"shorter": data[:len(data)-1], "other": append([]byte{data[0] ^ 1}, data[1:]...)} {
		if err := os.WriteFile(file, spoiled, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := r.client.MoveArtifact(t.Context(), made.ArtifactID)
		if fault.Of(err) != fault.BytesLost {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	_, err = r.client.MoveArtifact(t.Context(), made.ArtifactID)
	refused(t, err, fault.ArtifactNotFound)
	_, err = r.client.StatArtifact(t.Context(), made.ArtifactID, false)
	refused(t, err, fault.ArtifactNotFound)
	_, err = r.client.MoveArtifact(t.Context(), "../etc")
	refused(t, err, fault.InvalidInput)
	_, err = r.client.StatArtifact(t.Context(), "../etc", false)
	refused(t, err, fault.InvalidInput)
	r.stop()

	// A store that does not answer, and one that is not looked at, prove nothing.
	r.deps.Config.ArtifactStore.S3.Bucket = "no-such-bucket"
	r.start()
	_, err = r.client.StatArtifact(t.Context(), made.ArtifactID, false)
	refused(t, err, fault.StoreUnavailable)
	r.stop()
	r.deps.Config.ArtifactStore.Backend = "dir"
	r.start()
	r.update(func(ctx context.Context, tx *store.Tx) error {
		a, err := templatedb.GetArtifact(ctx, tx, template.ArtifactID(made.ArtifactID))
		if err == nil {
			a.Backend = "s3"
			_, err = templatedb.MoveArtifact(ctx, tx, a, template.OnArtifactStored)
		}
		return err
	})
	_, err = r.client.StatArtifact(t.Context(), made.ArtifactID, false)
	refused(t, err, fault.BytesElsewhere)
	_, err = r.client.MoveArtifact(t.Context(), made.ArtifactID)
	refused(t, err, fault.BytesElsewhere)
}

// A deleted artifact goes from the directory of before too.
func TestADeleteFindsBytesThatWereNotMoved(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	made := r.built(r.image("stays:1", "app"))
	r.stop()
	toS3(service.S3(t))(&r.deps)
	r.start()
	for _, on := range []template.ArtifactEvent{template.OnArtifactUnused, template.OnArtifactHostsClean} {
		r.update(func(ctx context.Context, tx *store.Tx) error {
			a, err := templatedb.GetArtifact(ctx, tx, template.ArtifactID(made.ArtifactID))
			if err == nil {
				_, err = templatedb.MoveArtifact(ctx, tx, a, on)
			}
			return err
		})
	}
	if err := r.client.DeleteArtifact(t.Context(), made.ArtifactID); err != nil {
		t.Fatal(err)
	}
	if left := names(t, r.deps.Config.ArtifactStore.Dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestAnUploadIsTakenWhenItIsTheArtifact(t *testing.T) {
	for _, backend := range []string{"dir", "s3"} {
		t.Run(backend, func(t *testing.T) {
			r := newRig(t, open(t, sqlite(t)), func(d *templatecenter.Deps) {
				if backend == "s3" {
					toS3(service.S3(t))(d)
				}
			})
			data := bytes.Repeat([]byte("artifact "), 1<<17)
			hash := sha256.Sum256(data)
			key := hex.EncodeToString(hash[:])
			id := string(template.ArtifactIDOf(key))
			r.update(func(ctx context.Context, tx *store.Tx) error {
				return register(ctx, tx, cubeapi.JobReport{ArtifactID: id, ContentKey: key, Ext4SHA256: key, Ext4SizeBytes: int64(len(data)), StorageBackend: "dir", ObjectKey: id + ".ext4"})
			})
			up := func(data []byte) (cubeapi.TCArtifactAnswer, error) {
				return r.client.UploadArtifact(t.Context(), id, bytes.NewReader(data), strings.NewReader(`{"receipt": true}`))
			}
			for what, bad := range map[string][]byte{"empty": nil, "shorter": data[1:], "longer": append(slices.Clone(data), 1), "other": append([]byte("A"), data[1:]...)} {
				if _, err := up(bad); fault.Of(err) != fault.InvalidInput {
					t.Errorf("%s: %v", what, err)
				}
			}
			_, err := r.client.UploadArtifact(t.Context(), "rfs-000000000000000000000000", bytes.NewReader(data), nil)
			refused(t, err, fault.ArtifactNotFound)
			_, err = r.client.UploadArtifact(t.Context(), "../../etc/passwd", bytes.NewReader(data), nil)
			refused(t, err, fault.InvalidInput)
			_, err = r.client.StatArtifact(t.Context(), id, false)
			refused(t, err, fault.BytesElsewhere) // nobody noted that it was here
			if work := names(t, r.deps.Config.TemplateCenter.WorkDir); len(work) != 0 {
				t.Errorf("refused uploads left %v", work)
			}

			s, err := up(data)
			if err != nil || s.Status != cubeapi.BytesUploaded || s.SHA256 != key || s.SizeBytes != int64(len(data)) || s.Backend != backend || s.Path == "" {
				t.Fatalf("%+v %v", s, err)
			}
			if got := r.fetch(id); !bytes.Equal(got, data) {
				t.Error("other bytes came")
			}
			receipt, err := r.client.Receipt(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			defer receipt.Close()
			if b, err := io.ReadAll(receipt); err != nil || string(b) != `{"receipt": true}` {
				t.Errorf("receipt %q %v", b, err)
			}
			if s, err := up(data); err != nil || s.Status != cubeapi.BytesReused {
				t.Errorf("%+v %v", s, err)
			}
			if work := names(t, r.deps.Config.TemplateCenter.WorkDir); len(work) != 0 {
				t.Errorf("left %v", work)
			}
		})
	}
}

// Forms that are none are refused, and an upload needs the token.
func TestAnUploadIsAForm(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	made := r.built(r.image("form:1", "app"))
	form := func(fields ...string) (string, io.Reader) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		for _, f := range fields {
			name, value, _ := strings.Cut(f, "=")
			if err := w.WriteField(name, value); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return w.FormDataContentType(), &b
	}
	if err := os.Remove(filepath.Join(r.deps.Config.ArtifactStore.Dir, made.ArtifactID+".ext4")); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		fields []string
		token  string
		status int
	}{
		"no token":           {[]string{"artifact_id=" + made.ArtifactID, "file=x"}, "", http.StatusUnauthorized},
		"no field":           {nil, token, http.StatusBadRequest},
		"file before id":     {[]string{"file=x", "artifact_id=" + made.ArtifactID}, token, http.StatusBadRequest},
		"no file":            {[]string{"artifact_id=" + made.ArtifactID}, token, http.StatusBadRequest},
		"two receipts":       {[]string{"artifact_id=" + made.ArtifactID, "receipt=a", "receipt=b"}, token, http.StatusBadRequest},
		"another field":      {[]string{"artifact_id=" + made.ArtifactID, "path=/etc/passwd"}, token, http.StatusBadRequest},
		"an id that is none": {[]string{"artifact_id=" + strings.Repeat("a", 300), "file=x"}, token, http.StatusBadRequest},
	} {
		kind, body := form(c.fields...)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+cubeapi.PathTCArtifactUpload, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", kind)
		req.Header.Set(cubeapi.HeaderCallbackToken, c.token)
		if status, text := r.do(req); status != c.status {
			t.Errorf("%s: %d %s", what, status, text)
		}
	}
	if status, text := r.post(cubeapi.PathTCArtifactUpload, token, "{}"); status != http.StatusBadRequest {
		t.Errorf("no form: %d %s", status, text)
	}
}

// An upload that breaks off leaves nothing behind.
func TestAnUploadThatBreaksOffLeavesNothing(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	made := r.built(r.image("broken:1", "app"))
	file := filepath.Join(r.deps.Config.ArtifactStore.Dir, made.ArtifactID+".ext4")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.UploadArtifact(t.Context(), made.ArtifactID, io.MultiReader(bytes.NewReader(data[:len(data)/2]), broken{}), nil); err == nil {
		t.Error("half an upload was taken")
	}
	eventually(t, "nothing is left", func() bool { return len(names(t, r.deps.Config.TemplateCenter.WorkDir)) == 0 })
	if left := names(t, r.deps.Config.ArtifactStore.Dir); slices.Contains(left, made.ArtifactID+".ext4") {
		t.Errorf("left: %v", left)
	}
	if s, err := r.client.UploadArtifact(t.Context(), made.ArtifactID, bytes.NewReader(data), nil); err != nil || s.Status != cubeapi.BytesUploaded {
		t.Errorf("%+v %v", s, err)
	}
}

// broken is a disk that fails.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the disk says no") }
