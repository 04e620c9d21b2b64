package master_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/lease"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// log returns all that is said of a job, as text.
func (r *rig) log(jobID string) (lines []string) {
	r.t.Helper()
	for after := int64(0); ; {
		a, err := r.api.JobLogs(r.t.Context(), jobID, after, 0)
		must(r.t, err)
		for _, l := range a.Lines {
			if l.Seq != after+1 {
				r.t.Errorf("line %d follows %d", l.Seq, after)
			}
			after, lines = l.Seq, append(lines, l.Source+": "+l.Line)
		}
		if len(a.Lines) == 0 {
			return lines
		}
	}
}

// says demands that a log has these words, in this order.
func says(t *testing.T, lines []string, words ...string) {
	t.Helper()
	at := 0
	for _, w := range words {
		from := at
		for at < len(lines) && !strings.Contains(lines[at], w) {
			at++
		}
		if at == len(lines) {
			t.Errorf("%q is not said behind line %d of:\n%s", w, from, strings.Join(lines, "\n"))
			return
		}
	}
}

func TestTheLogTellsTheStoryOfAJob(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		r.host(0, plenty)
		h := r.host(1, plenty)
		h.set(func(h *fakeHost) { h.ensure = broken })
		j := r.template(alias("told"))
		lines := r.log(j.JobID)
		says(t, lines, "master: queued with priority 0: registry.local/base:1", "begun after", "phase unpacking, after", "of pulling", "phase storing", "master: built: artifact "+j.ArtifactID, "to 2 hosts", "ready on 1 of 2 hosts")
		says(t, lines, "host host-a is ready, after")
		says(t, lines, "host host-b failed, after", "ready on 1 of 2")
		says(t, lines, "alias told is template "+j.TemplateID)
		if why := strings.Join(lines, "\n"); !strings.Contains(why, "disk_full") {
			t.Errorf("the log does not name why a host failed:\n%s", why)
		}
	})
}

// What a builder says comes with its reports, and in their transaction; a
// failure is told with its cause.
func TestWhatABuilderSaysIsKept(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	j, _ := r.submitIdle()
	say := func(rep cubeapi.JobReport, lines ...string) error {
		for _, l := range lines {
			rep.Log = append(rep.Log, cubeapi.LogEntry{AtMS: 1_700_000_000_000, Line: l})
		}
		return r.center.report.Job(t.Context(), j.JobID, rep)
	}
	must(t, say(building(cubeapi.JobReport{}), "one", "two "+strings.Repeat("x", 5000)))
	must(t, say(cubeapi.JobReport{Status: "FAILED", ErrorCode: "image_not_found", ErrorMessage: "registry.local has no base:1, it answered 404"}, "three"))
	refused(t, say(building(cubeapi.JobReport{}), "late"), fault.StateConflict)
	lines := r.log(j.JobID)
	says(t, lines, "templatecenter: one", "templatecenter: two xxx", "templatecenter: three", "master: failed in phase building_ext4: registry.local has no base:1, it answered 404")
	for _, l := range lines {
		if len(l) > templatedb.MaxLogLine+20 || strings.HasSuffix(l, ": late") {
			t.Errorf("line %.100q of %d bytes", l, len(l))
		}
	}
	refused(t, say(building(cubeapi.JobReport{}), make([]string, 501)...), fault.InvalidInput)
}

func TestALongLogIsCut(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r := newRig(t, dsn)
		r.start()
		j, _ := r.submitIdle()
		r.update(func(ctx context.Context, tx *store.Tx) error {
			lines := make([]templatedb.LogLine, templatedb.MaxLogLines+10)
			for i := range lines {
				lines[i] = templatedb.LogLine{At: tx.Now, Source: "templatecenter", Line: fmt.Sprint("line ", i)}
			}
			return templatedb.AddLog(ctx, tx, template.JobID(j.JobID), lines...)
		})
		_, err := r.api.CancelJob(t.Context(), j.JobID)
		must(t, err)
		lines := r.log(j.JobID)
		if n := len(lines); n != templatedb.MaxLogLines+1 || !strings.Contains(lines[n-1], "the log is cut here") {
			t.Errorf("%d lines, the last is %q", n, lines[n-1])
		}
	})
}

// Whoever follows a log gets each line when it comes, and learns of the end.
func TestALogIsFollowed(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	r.host(0, plenty)
	j, q := r.submitIdle()
	got, failed := make(chan string, 1000), make(chan error, 1)
	go func() {
		defer close(got)
		for after := int64(0); ; {
			a, err := r.api.JobLogs(t.Context(), j.JobID, after, 30*time.Second)
			if err != nil {
				failed <- err
				return
			}
			for _, l := range a.Lines {
				got <- l.Line
			}
			if after = a.Next; a.Ended {
				return
			}
		}
	}()
	next := func(words string) {
		t.Helper()
		for end := time.After(20 * time.Second); ; {
			select {
			case l, ok := <-got:
				if !ok {
					t.Fatalf("the log ended before %q", words)
				}
				if strings.Contains(l, words) {
					return
				}
			case <-end:
				t.Fatalf("%q never came", words)
			}
		}
	}
	next("queued")
	must(t, r.center.report.Job(t.Context(), j.JobID, building(cubeapi.JobReport{Log: []cubeapi.LogEntry{{AtMS: 1, Line: "halfway"}}})))
	next("halfway")
	must(t, r.center.report.Job(t.Context(), j.JobID, r.center.built(q)))
	next("ready on 1 of 1 hosts")
	for range got { // to its end
	}
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	// One that waits does not hold up the master's end.
	other, _ := r.submitIdle()
	a, err := r.api.JobLogs(t.Context(), other.JobID, 0, 0)
	must(t, err)
	asked := make(chan error, 1)
	go func() {
		_, err := r.api.JobLogs(t.Context(), other.JobID, a.Next, 30*time.Second)
		asked <- err
	}()
	r.m.stop()
	select {
	case <-asked: // with no lines, or refused
	case <-time.After(20 * time.Second):
		t.Error("it waits on")
	}
}

func TestLogsRefuse(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	j, _ := r.submitIdle()
	path := r.front.URL + strings.Replace(cubeapi.PathJobLogs, "{job_id}", j.JobID, 1)
	for query, want := range map[string]int{"": 200, "?after=1&limit=1&wait=0": 200, "?after=x": 400, "?after=-1": 400, "?limit=0": 400, "?limit=100000": 400, "?wait=31": 400, "?wait=-1": 400} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, path+query, nil)
		must(t, err)
		q.Header.Set(cubeapi.HeaderAPIKey, apiKey)
		a, err := http.DefaultClient.Do(q)
		must(t, err)
		must(t, a.Body.Close())
		if a.StatusCode != want {
			t.Errorf("%s: %d, want %d", query, a.StatusCode, want)
		}
	}
	_, err := r.api.JobLogs(t.Context(), "job-nobody", 0, 0)
	refused(t, err, fault.JobNotFound)
	_, err = cubeapi.NewClient(r.front.URL, "guess").JobLogs(t.Context(), j.JobID, 0, 0)
	refused(t, err, fault.Unauthenticated)
}

// The answer to a report may be lost: what it said is not said twice, and what is
// new of the next one is not lost. Another builder begins to count anew.
func TestARepeatedReportDoublesNoLines(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	j, _ := r.submitIdle()
	fences := r.claimed(j.JobID, 2, time.Hour)
	report := func(f lease.Fence, from int64, lines ...string) {
		t.Helper()
		rep := cubeapi.JobReport{Status: cubeapi.StatusRunning, Holder: f.Holder, Epoch: int64(f.Epoch), LogFrom: from}
		for _, l := range lines {
			rep.Log = append(rep.Log, cubeapi.LogEntry{AtMS: time.Now().UnixMilli(), Line: l})
		}
		must(t, cubeapi.NewReportClient(r.front.URL, callbackToken).Job(t.Context(), j.JobID, rep))
	}
	f := fences[1]
	report(f, 1, "one", "two")
	report(f, 1, "one", "two")
	report(f, 1, "one", "two", "three")
	report(f, 3, "three", "four")
	report(f, 5, "five")
	report(f, 0, "uncounted")
	var got []string
	for _, l := range r.log(j.JobID) {
		if words, ok := strings.CutPrefix(l, "templatecenter: "); ok {
			got = append(got, words)
		}
	}
	if want := []string{"one", "two", "three", "four", "five", "uncounted"}; !slices.Equal(got, want) {
		t.Errorf("it said %v, want %v", got, want)
	}
}

// Lines go after a month, those of jobs that last too, and the log says so. A
// builder whose clock is far off does not have its lines removed at once.
func TestOldLinesAreForgotten(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	j, _ := r.submitIdle()
	must(t, cubeapi.NewReportClient(r.front.URL, callbackToken).Job(t.Context(), j.JobID, cubeapi.JobReport{Status: cubeapi.StatusRunning, Log: []cubeapi.LogEntry{{AtMS: 1, Line: "of 1970"}}}))
	r.update(func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE job_log SET at_us = ? WHERE seq = 1`, tx.Now.Add(-31*24*time.Hour).UnixMicro())
		return err
	})
	var lines []cubeapi.JobLogLine
	eventually(t, "the old line goes", func() bool {
		a, err := r.api.JobLogs(t.Context(), j.JobID, 0, 0)
		must(t, err)
		lines = a.Lines
		return strings.HasPrefix(lines[0].Line, "lines 1 to 1 are not kept")
	})
	if len(lines) < 2 || lines[0].Seq != 1 || lines[1].Seq != 2 || lines[1].Line != "of 1970" {
		t.Errorf("%+v", lines)
	}
}
