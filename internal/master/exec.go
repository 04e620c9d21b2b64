package master

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

const (
	defaultExec = time.Minute
	maxExec     = 24 * time.Hour
	maxExecBody = 64 << 20
	chunk       = 64 << 10
)

// serveExec runs a command and streams what it says, one JSON object a line.
// A refusal before the first line has its HTTP status; a later one is a line.
func (m *Master) serveExec(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.ExecRequest
	err := serve.ReadJSON(r, maxExecBody, &req)
	if err == nil {
		err = checkExec(req)
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	timeout := defaultExec
	if req.TimeoutMS > 0 {
		timeout = time.Duration(req.TimeoutMS) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	if err := m.exec(ctx, w, req); err != nil {
		serve.WriteError(w, r, err)
	}
}

func checkExec(r cubeapi.ExecRequest) error {
	switch {
	case len(r.Command) == 0 || r.Command[0] == "":
		return fault.New(fault.InvalidInput, "command is missing")
	case r.TimeoutMS < 0 || r.TimeoutMS > maxExec.Milliseconds():
		return fault.New(fault.InvalidInput, "timeout_ms %d: 0 to %d", r.TimeoutMS, maxExec.Milliseconds())
	}
	return nil
}

// exec runs a command. An error means that nothing was sent to w yet.
func (m *Master) exec(ctx context.Context, w http.ResponseWriter, req cubeapi.ExecRequest) error {
	client, id, err := m.reach(ctx, req.SandboxID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := client.Exec(ctx)
	if err != nil {
		cancel()
		return hostFault(err, id)
	}
	var feeding sync.WaitGroup
	feeding.Go(func() { feed(stream, req) })
	defer feeding.Wait()
	defer cancel()
	e, err := stream.Recv()
	if err != nil {
		return execFault(err, id)
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines, flush := json.NewEncoder(w), http.NewResponseController(w)
	for {
		event := execEvent(e)
		if lines.Encode(event) != nil || flush.Flush() != nil || event.Exit != nil {
			return nil // the caller went away, or it is over
		}
		if e, err = stream.Recv(); err != nil {
			d := fault.DetailOf(execFault(err, id))
			_ = lines.Encode(cubeapi.ExecEvent{Error: &d}) // a caller that went away reads no more
			return nil
		}
	}
}

// execFault words the end of a stream that had no exit.
func execFault(err error, id host.ID) error {
	if errors.Is(err, io.EOF) {
		return fault.New(fault.GuestUnreachable, "host %s: the answer of the command broke off", id)
	}
	return hostFault(err, id)
}

// feed sends the command and its input, beside the output: a command may answer
// before it has read all. A failure here shows in the answers; the stream's
// context ends it.
func feed(stream hostpb.HostService_ExecClient, req cubeapi.ExecRequest) {
	stdin := len(req.Stdin) > 0
	start := &hostpb.ExecStart{SandboxId: req.SandboxID, Command: req.Command, Envs: req.Envs, Cwd: req.Cwd, User: req.User, Stdin: stdin}
	if stream.Send(&hostpb.ExecRequest{Message: &hostpb.ExecRequest_Start{Start: start}}) != nil {
		return
	}
	for rest := req.Stdin; len(rest) > 0; {
		n := min(chunk, len(rest))
		if stream.Send(&hostpb.ExecRequest{Message: &hostpb.ExecRequest_Stdin{Stdin: rest[:n]}}) != nil {
			return
		}
		rest = rest[n:]
	}
	if stdin && stream.Send(&hostpb.ExecRequest{Message: &hostpb.ExecRequest_CloseStdin{CloseStdin: true}}) != nil {
		return
	}
	_ = stream.CloseSend() // it only says that no more input comes
}

func execEvent(m *hostpb.ExecResponse) cubeapi.ExecEvent {
	switch m := m.GetMessage().(type) {
	case *hostpb.ExecResponse_Started:
		return cubeapi.ExecEvent{PID: m.Started.GetPid()}
	case *hostpb.ExecResponse_Stdout:
		return cubeapi.ExecEvent{Stdout: m.Stdout}
	case *hostpb.ExecResponse_Stderr:
		return cubeapi.ExecEvent{Stderr: m.Stderr}
	case *hostpb.ExecResponse_Exited:
		return cubeapi.ExecEvent{Exit: &cubeapi.ExecExit{Code: int(m.Exited.GetExitCode()), Signal: m.Exited.GetSignal()}}
	}
	return cubeapi.ExecEvent{}
}

func (m *Master) serveRead(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	var client hostpb.HostServiceClient
	var id host.ID
	err := checkPath(q.Get("path"))
	if err == nil {
		client, id, err = m.reach(r.Context(), q.Get("sandbox_id"))
	}
	var stream hostpb.HostService_ReadFileClient
	if err == nil {
		stream, err = client.ReadFile(r.Context(), &hostpb.ReadFileRequest{SandboxId: q.Get("sandbox_id"), Path: q.Get("path"), User: q.Get("user")})
		err = hostFault(err, id)
	}
	var first *hostpb.ReadFileResponse
	if err == nil {
		first, err = stream.Recv()
		err = hostFault(err, id)
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if n := first.GetSizeBytes(); n >= 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	}
	for e := first; ; {
		if _, err := w.Write(e.GetData()); err != nil {
			return // the caller went away
		}
		if e, err = stream.Recv(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			panic(http.ErrAbortHandler) // a file cut short must not look whole
		}
	}
}

func checkPath(path string) error {
	if path == "" || strings.Contains(path, "\x00") {
		return fault.New(fault.InvalidInput, "path %.100q", path)
	}
	return nil
}

func (m *Master) serveWrite(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	n, err := m.write(r.Context(), q.Get("sandbox_id"), q.Get("path"), q.Get("user"), r.Body)
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, cubeapi.FileAnswer{Envelope: cubeapi.OK(requestID(r)), Path: q.Get("path"), WrittenBytes: n})
}

func (m *Master) write(ctx context.Context, sandboxID, path, user string, data io.Reader) (int64, error) {
	if err := checkPath(path); err != nil {
		return 0, err
	}
	client, id, err := m.reach(ctx, sandboxID)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // an upload that breaks off must not look whole
	stream, err := client.WriteFile(ctx)
	if err != nil {
		return 0, hostFault(err, id)
	}
	err = stream.Send(&hostpb.WriteFileRequest{Message: &hostpb.WriteFileRequest_Target{Target: &hostpb.WriteFileTarget{SandboxId: sandboxID, Path: path, User: user}}})
	buffer := make([]byte, chunk)
	for err == nil {
		n, end := data.Read(buffer)
		if n > 0 {
			err = stream.Send(&hostpb.WriteFileRequest{Message: &hostpb.WriteFileRequest_Data{Data: buffer[:n]}})
		}
		if end == io.EOF { //nolint:errorlint // a body cut short ends otherwise, and must not look whole
			break
		}
		if end != nil {
			return 0, fault.Wrap(fault.CallCancelled, end, "upload of %s", path)
		}
	}
	// The reason for a failed send is in the answer.
	answer, err := stream.CloseAndRecv()
	return answer.GetWrittenBytes(), hostFault(err, id)
}
