package master

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
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
	chunk       = 64 << 10
)

// serveExec runs a command and streams what it says, one JSON object a line.
// A refusal before the first line has its HTTP status; a later one is a line.
func (m *Master) serveExec(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.ExecRequest
	err := serve.ReadJSON(r, 64<<20, &req)
	if err == nil && len(req.Command) == 0 {
		err = fault.New(fault.InvalidInput, "command is missing")
	}
	timeout := time.Duration(req.TimeoutMS) * time.Millisecond
	if timeout == 0 {
		timeout = defaultExec
	}
	if err == nil && (timeout < 0 || timeout > maxExec) {
		err = fault.New(fault.InvalidInput, "timeout_ms %d: at most %d", req.TimeoutMS, maxExec.Milliseconds())
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	var stream hostpb.HostService_ExecClient
	var id host.ID
	if err == nil {
		stream, id, err = m.startExec(ctx, req)
	}
	var first *hostpb.ExecResponse
	if err == nil {
		first, err = stream.Recv()
		err = hostFault(err, id)
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines, flush := json.NewEncoder(w), http.NewResponseController(w)
	for e := first; ; {
		event := execEvent(e)
		if lines.Encode(event) != nil || flush.Flush() != nil || event.Exit != nil {
			return // the caller went away, or it is over
		}
		if e, err = stream.Recv(); err != nil {
			d := fault.DetailOf(hostFault(err, id))
			_ = lines.Encode(cubeapi.ExecEvent{Error: &d}) // a caller that went away reads no more
			return
		}
	}
}

func (m *Master) startExec(ctx context.Context, req cubeapi.ExecRequest) (hostpb.HostService_ExecClient, host.ID, error) {
	client, id, err := m.reach(ctx, req.SandboxID)
	if err != nil {
		return nil, "", err
	}
	stream, err := client.Exec(ctx)
	if err != nil {
		return nil, id, hostFault(err, id)
	}
	messages := []*hostpb.ExecRequest{{Message: &hostpb.ExecRequest_Start{Start: &hostpb.ExecStart{SandboxId: req.SandboxID, Command: req.Command, Envs: req.Envs, Cwd: req.Cwd, User: req.User, Stdin: len(req.Stdin) > 0}}}}
	for rest := req.Stdin; len(rest) > 0; {
		n := min(chunk, len(rest))
		messages = append(messages, &hostpb.ExecRequest{Message: &hostpb.ExecRequest_Stdin{Stdin: rest[:n]}})
		rest = rest[n:]
	}
	if len(req.Stdin) > 0 {
		messages = append(messages, &hostpb.ExecRequest{Message: &hostpb.ExecRequest_CloseStdin{CloseStdin: true}})
	}
	go func() {
		// Input beside output: a command may answer before it has read all. A
		// failure here shows in the answers; the stream ends with ctx.
		for _, msg := range messages {
			if stream.Send(msg) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	return stream, id, nil
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
	client, id, err := m.reach(r.Context(), q.Get("sandbox_id"))
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
		n, end := io.ReadFull(data, buffer)
		if n > 0 {
			err = stream.Send(&hostpb.WriteFileRequest{Message: &hostpb.WriteFileRequest_Data{Data: buffer[:n]}})
		}
		if errors.Is(end, io.EOF) || errors.Is(end, io.ErrUnexpectedEOF) {
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
