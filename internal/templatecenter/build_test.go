package templatecenter_test

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/progress"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
	"github.com/paddock-dev/paddock/internal/templatecenter"
	"github.com/paddock-dev/paddock/test/service"
)

func TestAJobBecomesAnArtifact(t *testing.T) {
	databases(t, func(t *testing.T, db *store.Store) {
		board := &progress.Memory{}
		r := newRig(t, db, func(d *templatecenter.Deps) { d.Board = board })
		b := r.job(r.image("app", "1"))
		r.submit(b)
		out := r.master.outcome(b.JobID)
		if out.Status != cubeapi.StatusBuilt || out.Reused || out.TemplateID != b.TemplateID {
			t.Fatalf("outcome %+v", out)
		}
		if out.ArtifactID != string(template.ArtifactIDOf(out.ContentKey)) || len(out.Ext4SHA256) != 64 || out.StorageBackend != "dir" || out.ObjectKey != out.ArtifactID+".ext4" || len(out.SpecFingerprint) != 64 || out.ImageConfig == nil {
			t.Errorf("outcome %+v", out)
		}
		if info, err := os.Stat(out.Ext4Path); err != nil || info.Size() != out.Ext4SizeBytes || info.Size()%(2<<20) != 0 {
			t.Errorf("file %v, %v, outcome says %d", info, err, out.Ext4SizeBytes)
		}
		checkReports(t, r.master.of(b.JobID))
		if work, kept := r.left(); len(work) > 0 || !slices.Equal(kept, []string{out.ObjectKey, out.ArtifactID + ".receipt.json"}) {
			t.Errorf("left in work %v, in the store %v", work, kept)
		}
		eventually(t, "an empty board", func() bool {
			_, found, err := board.Get(t.Context(), template.JobID(b.JobID))
			return !found && err == nil
		})
	})
}

// checkReports: each phase is told once when it begins, in order, progress
// never falls, and the outcome comes last.
func checkReports(t *testing.T, list []cubeapi.JobReport) {
	t.Helper()
	var phases []string
	last := 0
	for i, r := range list {
		if r.Status == cubeapi.StatusBuilt {
			if i != len(list)-1 {
				t.Errorf("%+v after BUILT", list[i+1:])
			}
			continue
		}
		if !slices.Contains(phases, r.Phase) {
			phases = append(phases, r.Phase)
		}
		if r.Progress < last || r.Phase != phases[len(phases)-1] {
			t.Errorf("report %d went back: %+v", i, r)
		}
		last = r.Progress
	}
	if want := []string{"PULLING", "UNPACKING", "BUILDING_EXT4", "STORING"}; !slices.Equal(phases, want) {
		t.Errorf("phases %v, want %v", phases, want)
	}
	end := list[len(list)-2]
	if end.PullTotalBytes == 0 || end.PullDoneBytes != end.PullTotalBytes || end.PullDoneLayers != 1 || end.PullTotalLayers != 1 || end.SourceImageDigest == "" {
		t.Errorf("last progress %+v", end)
	}
}

func TestEqualBytesAreBuiltOnce(t *testing.T) {
	databases(t, func(t *testing.T, db *store.Store) {
		r := newRig(t, db, nil)
		ref := r.image("app", "1")
		// Other ports make another template of the same bytes.
		one, two := r.job(ref), r.job(ref)
		r.gate.shut()
		r.submit(one)
		r.submit(two)
		eventually(t, "both builds ask for the image", func() bool { return r.gate.waiting() == 2 })
		r.gate.open()
		a, b := r.master.outcome(one.JobID), r.master.outcome(two.JobID)
		if a.Status != cubeapi.StatusBuilt || b.Status != cubeapi.StatusBuilt || a.Ext4SHA256 != b.Ext4SHA256 || a.Reused == b.Reused {
			t.Errorf("outcomes\n%+v\n%+v", a, b)
		}
		if c := r.built(ref); !c.Reused || c.Ext4SHA256 != a.Ext4SHA256 || c.ContentKey != a.ContentKey {
			t.Errorf("later outcome %+v", c)
		}
	})
}

func TestAReadyRowWithoutBytesIsBuiltAgain(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	ref := r.image("app", "1")
	first := r.built(ref)
	if err := os.Remove(first.Ext4Path); err != nil {
		t.Fatal(err)
	}
	second := r.built(ref)
	if second.Reused || second.ArtifactID != first.ArtifactID {
		t.Errorf("outcome %+v", second)
	}
	if _, err := os.Stat(first.Ext4Path); err != nil {
		t.Error(err)
	}
}

// TestAStoreThatCannotTellFailsTheBuild: nothing is rebuilt on a guess.
func TestAStoreThatCannotTellFailsTheBuild(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	ref := r.image("app", "1")
	r.built(ref)
	dir := r.deps.Config.ArtifactStore.Dir
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	b := r.job(ref)
	r.submit(b)
	if out := r.master.outcome(b.JobID); out.ErrorCode != fault.StoreUnavailable.Name {
		t.Errorf("outcome %+v", out)
	}
}

func TestJobsWaitInOrder(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), func(d *templatecenter.Deps) { d.Config.TemplateCenter.MaxConcurrentBuilds = 1 })
	r.gate.shut()
	var jobs []cubeapi.TCBuildRequest
	for i := range 6 {
		b := r.job(r.image("app", strings.Repeat("x", i+1)))
		jobs = append(jobs, b)
		r.submit(b)
	}
	eventually(t, "the first build asks", func() bool { return r.gate.waiting() == 1 })
	expectMetric(t, r, "paddock_builds_waiting 5")
	expectMetric(t, r, "paddock_builds_running 1")
	var order atomic.Pointer[[]string]
	order.Store(&[]string{})
	r.master.set(func(jobID string, rep cubeapi.JobReport) int {
		if rep.Status == cubeapi.StatusBuilt {
			list := append(slices.Clone(*order.Load()), jobID)
			order.Store(&list)
		}
		return 0
	})
	r.gate.open()
	var want []string
	for _, b := range jobs {
		want = append(want, b.JobID)
		if out := r.master.outcome(b.JobID); out.Status != cubeapi.StatusBuilt {
			t.Errorf("outcome %+v", out)
		}
	}
	if got := *order.Load(); !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

func expectMetric(t *testing.T, r *rig, line string) {
	t.Helper()
	eventually(t, line, func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+cubeapi.PathMetrics, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, body := r.do(req)
		return slices.ContainsFunc(strings.Split(body, "\n"), func(l string) bool { return strings.HasPrefix(l, line) })
	})
}

func TestMetricsTellOfBuilds(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	r.built(r.image("app", "1"))
	for _, line := range []string{
		`paddock_build_phase_seconds_count{phase="pulling"} 1`, `paddock_build_phase_seconds_count{phase="unpacking"} 1`,
		`paddock_build_phase_seconds_count{phase="building_ext4"} 1`, `paddock_build_phase_seconds_count{phase="storing"} 1`,
		`paddock_build_seconds_count{outcome="built"} 1`, `paddock_artifact_bytes_total{direction="stored"}`, "paddock_builds_running 0",
	} {
		expectMetric(t, r, line)
	}
}

func TestFaultsOfAnImageEndItsJob(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	for name, c := range map[string]struct {
		ref  string
		want *fault.Code
	}{
		"unknown":       {r.gate.host + "/none:1", fault.ImageNotFound},
		"unreadable":    {"No Image", fault.ImageRef},
		"away":          {"127.0.0.1:1/app:1", fault.RegistryDown},
		"foreign":       {service.ForeignImage(t, r.registry, "foreign", service.File{Name: "a"}), fault.ImagePlatform},
		"foreign index": {service.ForeignIndex(t, r.registry, "findex", service.File{Name: "a"}), fault.ImagePlatform},
		"hostile":       {service.Image(t, r.registry, "hostile", service.File{Name: "../../evil"}), fault.LayerPath},
	} {
		t.Run(name, func(t *testing.T) {
			b := r.job(c.ref)
			r.submit(b)
			out := r.master.outcome(b.JobID)
			if out.Status != cubeapi.StatusFailed || out.ErrorCode != c.want.Name || out.ErrorMessage == "" {
				t.Errorf("outcome %+v, want %s", out, c.want.Name)
			}
			if work, kept := r.left(); len(work)+len(kept) > 0 {
				t.Errorf("left in work %v, in the store %v", work, kept)
			}
		})
	}
}

func TestTheDiskIsLookedAtFirst(t *testing.T) {
	for _, small := range []string{"work", "artifacts"} {
		t.Run(small, func(t *testing.T) {
			r := newRig(t, open(t, sqlite(t)), func(d *templatecenter.Deps) {
				d.Free = func(dir string) (int64, error) {
					if filepath.Base(dir) == small {
						return 4096, nil
					}
					return 1 << 40, nil
				}
			})
			b := r.job(r.image("app", "1"))
			r.submit(b)
			out := r.master.outcome(b.JobID)
			if out.ErrorCode != fault.DiskFull.Name || !strings.Contains(out.ErrorMessage, small) || !strings.Contains(out.ErrorMessage, "4096 are free") {
				t.Errorf("outcome %+v", out)
			}
		})
	}
}

func TestOnlyTheMastersJobsAreTaken(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	text := func(b cubeapi.TCBuildRequest) string {
		j, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(j)
	}
	ref := r.image("app", "1")
	good := r.job(ref, privately) // nobody builds it before it is handed over
	unknown, otherTemplate, otherImage := good, good, good
	unknown.JobID, otherTemplate.TemplateID, otherImage.Request.SourceImageRef = "job-000000000000000000000000", "tpl-1", r.gate.host+"/evil:1"
	badID := good
	badID.JobID = "../../etc"
	over := r.job(r.gate.host + "/none:1")
	r.submit(over)
	r.master.outcome(over.JobID)
	for name, c := range map[string]struct {
		token, body string
		status      int
		code        *fault.Code
	}{
		"no token":         {"", text(good), http.StatusUnauthorized, fault.TokenRejected},
		"wrong token":      {"guess", text(good), http.StatusUnauthorized, fault.TokenRejected},
		"no JSON":          {token, "{", http.StatusBadRequest, fault.InvalidInput},
		"no id":            {token, text(badID), http.StatusBadRequest, fault.InvalidInput},
		"unknown job":      {token, text(unknown), http.StatusNotFound, fault.JobNotFound},
		"job that is over": {token, text(over), http.StatusNotFound, fault.JobNotFound},
		"other template":   {token, text(otherTemplate), http.StatusBadRequest, fault.InvalidInput},
		"other image":      {token, text(otherImage), http.StatusBadRequest, fault.InvalidInput},
	} {
		t.Run(name, func(t *testing.T) {
			status, body := r.post(cubeapi.PathTCBuild, c.token, c.body)
			if status != c.status || !strings.Contains(body, `"`+c.code.Name+`"`) {
				t.Errorf("%d %s, want %d %s", status, body, c.status, c.code.Name)
			}
		})
	}
	r.gate.shut()
	withPassword := good // never stored, so never compared
	if status, body := r.post(cubeapi.PathTCBuild, token, text(withPassword)); status != http.StatusOK || !strings.Contains(body, "accepted") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := r.post(cubeapi.PathTCBuild, token, text(good)); status != http.StatusConflict || !strings.Contains(body, fault.BuildInProgress.Name) {
		t.Errorf("twice: %d %s", status, body)
	}
	if err := r.client.Build(t.Context(), good); err != nil {
		t.Errorf("a client that lost the answer: %v", err)
	}
	r.gate.open()
	r.master.outcome(good.JobID)
}

func TestWithoutATokenNobodyIsLetIn(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), func(d *templatecenter.Deps) { d.Config.Auth.CallbackToken = "" })
	for _, path := range []string{cubeapi.PathTCBuild, cubeapi.PathTCArtifactDelete} {
		if status, body := r.post(path, "", "{}"); status != http.StatusServiceUnavailable || !strings.Contains(body, fault.TokenUnset.Name) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

// A stop gives back what runs, and counts nobody as dead. What waits goes on
// waiting, and both are the next one's at once.
func TestAStopGivesBackWhatRuns(t *testing.T) {
	databases(t, func(t *testing.T, db *store.Store) {
		r := newRig(t, db, func(d *templatecenter.Deps) { d.Config.TemplateCenter.MaxConcurrentBuilds = 1 })
		r.stop()
		r.gate.shut()
		running, waiting := r.job(r.image("one", "1")), r.job(r.image("two", "2"))
		r.dead(running, template.JobBuilding, template.MaxBuilders-1) // one more that is lost would be its end
		r.start()
		eventually(t, "the first build asks", func() bool { return r.gate.waiting() == 1 })
		r.stop()
		for _, rep := range r.master.of(running.JobID) {
			if rep.Status != cubeapi.StatusRunning {
				t.Errorf("it was told of %+v", rep)
			}
		}
		for _, b := range []cubeapi.TCBuildRequest{running, waiting} {
			if j := r.jobRow(b.JobID); j.State != template.JobQueued {
				t.Errorf("job is %s: %s", j.State, j.Error)
			}
		}
		if l, _ := r.leaseOf(running); l.Epoch != template.MaxBuilders {
			t.Errorf("lease %+v", l)
		}
		left := r.jobRow(running.JobID)
		r.update(func(ctx context.Context, tx *store.Tx) error {
			if hold, _, err := templatedb.HoldOf(ctx, tx, left); err != nil || hold != template.Lost {
				t.Errorf("the lease of what ran: %v, %v", hold, err)
			}
			l, found, err := tx.LeaseOf(ctx, template.CentersSubject)
			if !found || l.Until.After(tx.Now) {
				t.Error("a template centre is shown that has stopped")
			}
			return err
		})
		if work, kept := r.left(); len(work)+len(kept) > 0 {
			t.Errorf("left in work %v, in the store %v", work, kept)
		}
		r.gate.open()
		r.start()
		for _, b := range []cubeapi.TCBuildRequest{running, waiting} {
			if out := r.master.outcome(b.JobID); out.Status != cubeapi.StatusBuilt {
				t.Errorf("outcome %+v", out)
			}
		}
	})
}

// Nobody else has the credentials of a private image: its build fails when the
// centre stops, and says why.
func TestAStopEndsAPrivateBuild(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	r.gate.shut()
	b := r.job(r.image("one", "1"), privately)
	r.submit(b)
	eventually(t, "the build asks", func() bool { return r.gate.waiting() == 1 })
	r.stop()
	out := r.master.outcome(b.JobID)
	if out.Status != cubeapi.StatusFailed || out.ErrorCode != fault.BuildCancelled.Name || !strings.Contains(out.ErrorMessage, "credentials") {
		t.Errorf("outcome %+v", out)
	}
	if j := r.jobRow(b.JobID); j.State != template.JobFailed {
		t.Errorf("job is %s", j.State)
	}
}

// The others go on at once with what a centre that stops had in hand.
func TestAnotherCentreGoesOnWhenOneStops(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	r.gate.shut()
	b := r.job(r.image("one", "1"))
	r.submit(b)
	eventually(t, "the build asks", func() bool { return r.gate.waiting() == 1 })
	other := r.second()
	r.gate.open()
	r.stop()
	out := r.master.outcome(b.JobID)
	if out.Status != cubeapi.StatusBuilt {
		t.Errorf("outcome %+v", out)
	}
	other.stop()
}

// TestTheMasterMayBeAwayForAWhile: reports are told again, the outcome too.
func TestTheMasterMayBeAwayForAWhile(t *testing.T) {
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusInternalServerError} {
		r := newRig(t, open(t, sqlite(t)), nil)
		var refused atomic.Int64
		r.master.set(func(_ string, rep cubeapi.JobReport) int {
			if rep.Status == cubeapi.StatusBuilt && refused.Add(1) <= 3 {
				return status
			}
			return 0
		})
		r.built(r.image("app", "1"))
		if n := refused.Load(); n != 4 {
			t.Errorf("status %d: BUILT was told %d times", status, n)
		}
	}
}

func TestARefusedArtifactLeavesNoBytes(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), nil)
	r.master.set(func(_ string, rep cubeapi.JobReport) int {
		if rep.Status == cubeapi.StatusBuilt {
			return http.StatusConflict
		}
		return 0
	})
	b := r.job(r.image("app", "1"))
	r.submit(b)
	if out := r.master.outcome(b.JobID); out.ErrorCode != fault.StateConflict.Name {
		t.Errorf("outcome %+v", out)
	}
	if work, kept := r.left(); len(work)+len(kept) > 0 {
		t.Errorf("left in work %v, in the store %v", work, kept)
	}
}

// TestAJobThatIsOverIsNotBuiltOn: when the master says that there is no such
// job, or that it has failed, its build ends.
func TestAJobThatIsOverIsNotBuiltOn(t *testing.T) {
	for status, code := range map[int]*fault.Code{http.StatusNotFound: fault.JobNotFound, http.StatusConflict: fault.StateConflict} {
		t.Run(code.Name, func(t *testing.T) {
			r := newRig(t, open(t, sqlite(t)), nil)
			r.gate.shut()
			r.master.set(func(string, cubeapi.JobReport) int { return status })
			b := r.job(r.image("app", "1"))
			r.submit(b)
			// By its row the job goes on here, so it may be begun anew a few times.
			expectMetric(t, r, `paddock_build_seconds_count{outcome="`+code.Name+`"} `)
			eventually(t, "nothing is left", func() bool {
				work, kept := r.left()
				return len(work)+len(kept) == 0
			})
		})
	}
}

func TestABuildHasATimeLimit(t *testing.T) {
	r := newRig(t, open(t, sqlite(t)), func(d *templatecenter.Deps) { d.Config.TemplateCenter.BuildTimeout = 200 * time.Millisecond })
	r.gate.shut()
	b := r.job(r.image("app", "1"))
	r.submit(b)
	if out := r.master.outcome(b.JobID); out.ErrorCode != fault.BuildTooLong.Name || !strings.Contains(out.ErrorMessage, "200ms") {
		t.Errorf("outcome %+v", out)
	}
}

// Who says nothing gets the certificates that there are; they are part of what
// names an artifact and a template's spec.
func TestCertificatesAreAMatterOfTheRequest(t *testing.T) {
	yes, no := true, false
	build := func(r *rig, ref string, with *bool) cubeapi.JobReport {
		b := r.job(ref, func(q *cubeapi.FromImageRequest) { q.WithCubeCA = with })
		r.submit(b)
		return r.master.outcome(b.JobID)
	}
	r := newRig(t, open(t, sqlite(t)), func(d *templatecenter.Deps) { d.Config.TemplateCenter.EgressCA = certificate(t) })
	ref := r.image("app", "1")
	silent, asked, without := build(r, ref, nil), build(r, ref, &yes), build(r, ref, &no)
	if silent.Status != cubeapi.StatusBuilt || asked.ArtifactID != silent.ArtifactID || asked.SpecFingerprint != silent.SpecFingerprint {
		t.Errorf("silent %+v, asked %+v", silent, asked)
	}
	if without.Status != cubeapi.StatusBuilt || without.ArtifactID == silent.ArtifactID || without.SpecFingerprint == silent.SpecFingerprint {
		t.Errorf("without %+v, with %+v", without, silent)
	}
	r = newRig(t, open(t, sqlite(t)), nil)
	ref = r.image("app", "1")
	if out := build(r, ref, &yes); out.ErrorCode != fault.InvalidInput.Name {
		t.Errorf("with none to put in: %+v", out)
	}
	if out := build(r, ref, nil); out.Status != cubeapi.StatusBuilt {
		t.Errorf("with none to put in, and none wanted: %+v", out)
	}
}

// certificate makes a file with one.
func certificate(t *testing.T) string {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	form := x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(nil, &form, &form, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestArtifactsLiveInS3(t *testing.T) {
	s3 := service.S3(t)
	c := config.S3{Endpoint: s3.Endpoint, Bucket: s3.Bucket, AccessKey: config.Secret(s3.AccessKey), SecretKey: config.Secret(s3.SecretKey), Region: s3.Region, PathStyle: true, Prefix: "art"}
	r := newRig(t, open(t, sqlite(t)), func(d *templatecenter.Deps) {
		d.Config.ArtifactStore.Backend, d.Config.ArtifactStore.S3 = "s3", c
		if err := os.MkdirAll(d.Config.ArtifactStore.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
	})
	out := r.built(r.image("app", "1"))
	if out.StorageBackend != "s3" || out.Ext4Path != "art/"+out.ObjectKey {
		t.Errorf("outcome %+v", out)
	}
	status, body, _ := r.download(http.MethodGet, out.ArtifactID, r.ticket(out.ArtifactID), nil)
	if status != http.StatusOK || sum(body) != out.Ext4SHA256 {
		t.Errorf("download: %d, %d bytes", status, len(body))
	}
	if again := r.built(r.image("app", "1")); !again.Reused {
		t.Errorf("outcome %+v", again)
	}
	if work, kept := r.left(); len(work)+len(kept) > 0 {
		t.Errorf("left in work %v, in the directory %v", work, kept)
	}
	s, err := artifact.NewS3(c)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.receipt(out.ArtifactID); got.SHA256 != out.Ext4SHA256 {
		t.Errorf("receipt %+v", got)
	}
	r.release(out.ArtifactID)
	if err := r.client.DeleteArtifact(t.Context(), out.ArtifactID); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{out.ObjectKey, out.ArtifactID + ".receipt.json"} {
		if _, err := s.Stat(t.Context(), key); !errors.Is(err, fault.ArtifactNotFound) {
			t.Errorf("object %s: %v", key, err)
		}
	}
}

// TestSpansJoinTheTrace: each phase is a span of the trace that the master
// sent along, and the reports carry it back.
func TestSpansJoinTheTrace(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	before, beforeP := otel.GetTracerProvider(), otel.GetTextMapPropagator()
	otel.SetTracerProvider(provider)
	otel.SetTextMapPropagator(propagation.TraceContext{})
	t.Cleanup(func() { otel.SetTracerProvider(before); otel.SetTextMapPropagator(beforeP) })
	r := newRig(t, open(t, sqlite(t)), nil)
	const traceID = "0af7651916cd43dd8448eb211c80319c"
	b := r.job(r.image("app", "1"))
	b.Trace = map[string]string{"traceparent": "00-" + traceID + "-b7ad6b7169203331-01"}
	r.submit(b)
	r.master.outcome(b.JobID)
	want := []string{"template.image.build", "template.image.building_ext4", "template.image.pulling", "template.image.storing", "template.image.unpacking"}
	var names []string
	eventually(t, "spans", func() bool {
		names = nil
		for _, s := range spans.GetSpans() {
			if s.SpanContext.TraceID().String() == traceID && strings.HasPrefix(s.Name, "template.image.") {
				names = append(names, s.Name)
			}
		}
		slices.Sort(names)
		return slices.Equal(names, want)
	})
}
