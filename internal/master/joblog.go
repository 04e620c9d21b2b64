package master

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

const (
	maxReportLines = 500 // of one report
	logLimit       = 500 // lines of one answer, unless it is asked for others
	maxLogLimit    = templatedb.MaxLogLines + 1
	maxLogWait     = 30 * time.Second
	logKept        = 30 * 24 * time.Hour    // lines of any job
	logSkew        = 24 * time.Hour         // how far a builder's clock may be off
	logLook        = 500 * time.Millisecond // between two looks while somebody waits
)

// Who says a line of a job's log.
const (
	byMaster = "master"
	byCenter = "templatecenter"
)

// say adds a line of the master's to a job's log.
func say(ctx context.Context, tx *store.Tx, id template.JobID, format string, args ...any) error {
	return templatedb.AddLog(ctx, tx, id, templatedb.LogLine{At: tx.Now, Source: byMaster, Line: fmt.Sprintf(format, args...)})
}

// freshLines leaves out of a report what the log has already: the answer to an
// earlier one was lost. It notes in j how far the log is then.
func freshLines(j *template.Job, rep cubeapi.JobReport) cubeapi.JobReport {
	if rep.LogFrom <= 0 || len(rep.Log) == 0 {
		return rep
	}
	said := &j.Plan.Said
	if said.Epoch != rep.Epoch {
		*said = template.Said{Epoch: rep.Epoch}
	}
	known := min(max(0, said.Lines+1-rep.LogFrom), int64(len(rep.Log)))
	said.Lines = max(said.Lines, rep.LogFrom-1+int64(len(rep.Log)))
	rep.Log = rep.Log[known:]
	return rep
}

// logReport adds what a builder said, and what follows from its report.
func logReport(ctx context.Context, tx *store.Tx, id template.JobID, rep cubeapi.JobReport, then ...string) error {
	lines := make([]templatedb.LogLine, 0, len(rep.Log)+len(then))
	for _, l := range rep.Log {
		at := time.UnixMilli(l.AtMS)
		if at.Before(tx.Now.Add(-logSkew)) || at.After(tx.Now.Add(logSkew)) {
			at = tx.Now // its clock is wrong, and lines are kept by their time
		}
		lines = append(lines, templatedb.LogLine{At: at, Source: byCenter, Line: l.Line})
	}
	for _, l := range then {
		lines = append(lines, templatedb.LogLine{At: tx.Now, Source: byMaster, Line: l})
	}
	return templatedb.AddLog(ctx, tx, id, lines...)
}

// logPhase words how a job went from one phase to another.
func logPhase(tx *store.Tx, before, now template.Job) []string {
	switch began, ok := before.PhaseTimes[before.Phase]; {
	case before.State == template.JobQueued:
		return []string{fmt.Sprintf("begun after %s in the queue", short(tx.Now.Sub(before.CreatedAt)))}
	case before.Phase == now.Phase:
		return nil
	case !ok:
		return []string{fmt.Sprintf("phase %s", now.Phase)}
	default:
		return []string{fmt.Sprintf("phase %s, after %s of %s", now.Phase, short(tx.Now.Sub(began)), before.Phase)}
	}
}

// logDone words the outcome of a job that came to something.
func logDone(ctx context.Context, tx *store.Tx, j template.Job) error {
	if j.Error != "" {
		if err := say(ctx, tx, j.ID, "warning: %s", j.Error); err != nil {
			return err
		}
	} else if j.Alias != "" {
		if err := say(ctx, tx, j.ID, "alias %s is template %s", j.Alias, j.TemplateID); err != nil {
			return err
		}
	}
	return say(ctx, tx, j.ID, "ready on %d of %d hosts, after %s", j.Ready, j.Expected, short(tx.Now.Sub(j.CreatedAt)))
}

func short(d time.Duration) string { return d.Round(time.Millisecond).String() }

// serveLogs answers what is said of a job behind a line that the caller has. It
// waits for more when asked to, for a while.
func (m *Master) serveLogs(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	after, err1 := number(q.Get("after"), 0, 0, 1<<60)
	limit, err2 := number(q.Get("limit"), logLimit, 1, maxLogLimit)
	seconds, err3 := number(q.Get("wait"), 0, 0, int64(maxLogWait/time.Second))
	for name, err := range map[string]error{"after": err1, "limit": err2, "wait": err3} {
		if err != nil {
			serve.WriteError(w, r, fault.Wrap(fault.InvalidInput, err, "%s", name))
			return
		}
	}
	until := time.NewTimer(time.Duration(seconds) * time.Second)
	defer until.Stop()
	look := time.NewTicker(logLook)
	defer look.Stop()
	for waiting := seconds > 0; ; {
		answer, err := m.logs(r.Context(), template.JobID(r.PathValue("job_id")), after, int(limit))
		if err != nil {
			serve.WriteError(w, r, err)
			return
		}
		if !waiting || answer.Ended || len(answer.Lines) > 0 {
			answer.Envelope = cubeapi.OK(requestID(r))
			serve.WriteJSON(w, http.StatusOK, answer)
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-m.base.Done():
			waiting = false
		case <-until.C:
			waiting = false
		case <-look.C:
		}
	}
}

// number reads a whole number of a query; nothing is otherwise.
func number(s string, otherwise, least, most int64) (int64, error) {
	if s == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err == nil && (n < least || n > most) {
		err = fmt.Errorf("%d is not within %d and %d", n, least, most)
	}
	return n, err
}

func (m *Master) logs(ctx context.Context, id template.JobID, after int64, limit int) (a cubeapi.JobLogAnswer, err error) {
	err = m.db.View(ctx, func(tx *store.Tx) error {
		j, err := templatedb.GetJob(ctx, tx, id)
		if err != nil {
			return err
		}
		lines, err := templatedb.JobLog(ctx, tx, id, after, limit)
		a = cubeapi.JobLogAnswer{JobID: string(id), Status: cubeapi.JobStatus[j.State], Lines: []cubeapi.JobLogLine{}, Next: after, Ended: !j.State.Active() && len(lines) < limit}
		if len(lines) > 0 && lines[0].Seq > after+1 { // the oldest go first
			a.Lines = append(a.Lines, cubeapi.JobLogLine{Seq: lines[0].Seq - 1, At: stamp(lines[0].At), Source: byMaster, Line: fmt.Sprintf("lines %d to %d are not kept any more", after+1, lines[0].Seq-1)})
		}
		for _, l := range lines {
			a.Lines, a.Next = append(a.Lines, cubeapi.JobLogLine{Seq: l.Seq, At: stamp(l.At), Source: l.Source, Line: l.Line}), l.Seq
		}
		return err
	})
	return a, err
}
