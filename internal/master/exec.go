package master

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
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
	lastSignal  = 64
	signalTime  = 10 * time.Second
	// lingerTime is how long the input of a command that ended is still taken.
	lingerTime = time.Second
)

// serveExec runs a command and streams what it says, one JSON object a line.
// A refusal before the first line has its HTTP status; a later one is a line.
func (m *Master) serveExec(w http.ResponseWriter, r *http.Request) {
	c, err := readExec(r)
	if err == nil {
		err = checkExec(c.ExecRequest)
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	timeout := defaultExec
	if c.TimeoutMS > 0 {
		timeout = time.Duration(c.TimeoutMS) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	if err := m.exec(ctx, w, c); err != nil {
		serve.WriteError(w, r, err)
	}
}

// command is what to run, and what it reads.
type command struct {
	cubeapi.ExecRequest
	input io.Reader // nil: nothing
	live  bool      // the input comes while the command runs
}

// duplex lets a handler answer while it still reads: also a refusal must not
// wait for the end of an input that a person types.
func duplex(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Content-Type") == cubeapi.ContentExecInput {
			if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
				serve.WriteError(w, r, fault.Wrap(fault.InvalidInput, err, "input beside the output: use HTTP/1.1"))
				return
			}
			// What is left of the input must never be read as a next request.
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

func readExec(r *http.Request) (c command, err error) {
	if r.Header.Get("Content-Type") != cubeapi.ContentExecInput {
		err = serve.ReadJSON(r, maxExecBody, &c.ExecRequest)
		if len(c.Stdin) > 0 {
			c.input = bytes.NewReader(c.Stdin)
		}
		return c, err
	}
	body := bufio.NewReaderSize(r.Body, chunk)
	line, err := readLine(body, cubeapi.MaxExecLine)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(line, &c.ExecRequest); err != nil {
		return c, fault.Wrap(fault.InvalidInput, err, "the first line is not the JSON that this path takes")
	}
	if len(c.Stdin) > 0 {
		return c, fault.New(fault.InvalidInput, "stdin comes after the first line, not in it")
	}
	if c.Detach {
		return c, fault.New(fault.InvalidInput, "detach: a command that nobody waits for has no input")
	}
	c.input, c.live = body, true
	return c, nil
}

func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > limit:
			return nil, fault.New(fault.InvalidInput, "the first line is over %d bytes", limit)
		case err == nil:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, fault.Wrap(fault.InvalidInput, err, "the body has no whole first line")
		}
	}
}

func checkExec(r cubeapi.ExecRequest) error {
	switch {
	case len(r.Command) == 0 || r.Command[0] == "":
		return fault.New(fault.InvalidInput, "command is missing")
	case r.TimeoutMS < 0 || r.TimeoutMS > maxExec.Milliseconds():
		return fault.New(fault.InvalidInput, "timeout_ms %d: 0 to %d", r.TimeoutMS, maxExec.Milliseconds())
	case r.Detach && (len(r.Stdin) > 0 || r.Terminal != nil):
		return fault.New(fault.InvalidInput, "detach: a command that nobody waits for has no stdin and no terminal")
	}
	return checkTerminal(r.Terminal)
}

const terminalMax = 10_000 // columns or rows

func checkTerminal(t *cubeapi.TerminalSize) error {
	if t != nil && (t.Columns == 0 || t.Rows == 0 || t.Columns > terminalMax || t.Rows > terminalMax) {
		return fault.New(fault.InvalidInput, "terminal of %d columns and %d rows: each is 1 to %d", t.Columns, t.Rows, terminalMax)
	}
	return nil
}

func terminalOut(t *cubeapi.TerminalSize) *hostpb.TerminalSize {
	if t == nil {
		return nil
	}
	return &hostpb.TerminalSize{Columns: t.Columns, Rows: t.Rows}
}

// exec runs a command. An error means that nothing was sent to w yet.
func (m *Master) exec(ctx context.Context, w http.ResponseWriter, c command) error {
	client, id, err := m.reach(ctx, c.SandboxID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := client.Exec(ctx)
	if err != nil {
		cancel()
		return hostFault(ctx, err, id)
	}
	fed := make(chan struct{})
	go func() { // c.end waits for it
		defer close(fed)
		if !feed(stream, c) {
			cancel() // who gives the input went away, and so does who reads the output
		}
	}()
	began := false
	defer func() { c.end(w, fed, began) }()
	defer cancel()
	e, err := stream.Recv()
	if err != nil {
		return execFault(ctx, err, id)
	}
	began = true
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines, flush := json.NewEncoder(w), http.NewResponseController(w)
	for {
		event := execEvent(e)
		if lines.Encode(event) != nil || flush.Flush() != nil || event.Exit != nil {
			return nil // the caller went away, or it is over
		}
		if e, err = stream.Recv(); err != nil {
			if c.Detach && errors.Is(err, io.EOF) {
				return nil // it runs, and no more is to be said
			}
			d := fault.DetailOf(execFault(ctx, err, id))
			_ = lines.Encode(cubeapi.ExecEvent{Error: &d}) // a caller that went away reads no more
			_ = flush.Flush()                              // nor does it then
			return nil
		}
	}
}

// end waits until the input is read no more. A caller that was told of the end
// stops sending by itself; one that does not is left.
func (c command) end(w http.ResponseWriter, fed <-chan struct{}, told bool) {
	if c.live {
		patience := time.Duration(0)
		if told {
			patience = lingerTime
		}
		select {
		case <-fed:
		case <-time.After(patience):
			_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) // wakes the read
		}
	}
	<-fed
}

// execFault words the end of a stream that had no exit.
func execFault(ctx context.Context, err error, id host.ID) error {
	if errors.Is(err, io.EOF) {
		return fault.New(fault.GuestUnreachable, "host %s: the answer of the command broke off", id)
	}
	return hostFault(ctx, err, id)
}

// feed sends the command and its input, beside the output: a command may answer
// before it has read all. It reports whether the input came to its end. Another
// failure here shows in the answers; the stream's context ends it.
func feed(stream hostpb.HostService_ExecClient, c command) (whole bool) {
	start := &hostpb.ExecStart{SandboxId: c.SandboxID, Command: c.Command, Envs: c.Envs, Cwd: c.Cwd, User: c.User, Stdin: c.input != nil, Terminal: terminalOut(c.Terminal), Detach: c.Detach}
	sent := stream.Send(&hostpb.ExecRequest{Message: &hostpb.ExecRequest_Start{Start: start}}) == nil
	if c.input != nil {
		buffer := make([]byte, chunk)
		for {
			n, err := c.input.Read(buffer)
			if n > 0 && sent {
				// A process that is gone takes no more; what comes is dropped.
				sent = stream.Send(&hostpb.ExecRequest{Message: &hostpb.ExecRequest_Stdin{Stdin: buffer[:n]}}) == nil
			}
			if err == io.EOF { //nolint:errorlint // a body cut short ends otherwise, and must not look whole
				break
			}
			if err != nil {
				return false
			}
		}
		sent = sent && stream.Send(&hostpb.ExecRequest{Message: &hostpb.ExecRequest_CloseStdin{CloseStdin: true}}) == nil
	}
	if sent {
		_ = stream.CloseSend() // it only says that no more input comes
	}
	return true
}

// serveSignal sends a signal to a process that exec started.
func (m *Master) serveSignal(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.ExecSignalRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil && (req.Signal < 1 || req.Signal > lastSignal) {
		err = fault.New(fault.InvalidInput, "signal %d: 1 to %d", req.Signal, lastSignal)
	}
	if err == nil {
		err = m.signal(r.Context(), req)
	}
	m.answer(w, r, req.RequestID, err)
}

func (m *Master) signal(ctx context.Context, req cubeapi.ExecSignalRequest) error {
	client, id, err := m.reach(ctx, req.SandboxID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, signalTime)
	defer cancel()
	_, err = client.Signal(ctx, &hostpb.SignalRequest{SandboxId: req.SandboxID, Pid: req.PID, Signal: int32(req.Signal)}) //nolint:gosec // it was checked
	return hostFault(ctx, err, id)
}

// serveResize changes the size of the terminal of a process that exec started.
func (m *Master) serveResize(w http.ResponseWriter, r *http.Request) {
	var req cubeapi.ExecResizeRequest
	err := serve.ReadJSON(r, maxBody, &req)
	if err == nil {
		err = checkTerminal(&req.Terminal)
	}
	if err == nil {
		err = m.resize(r.Context(), req)
	}
	m.answer(w, r, req.RequestID, err)
}

func (m *Master) resize(ctx context.Context, req cubeapi.ExecResizeRequest) error {
	client, id, err := m.reach(ctx, req.SandboxID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, signalTime)
	defer cancel()
	_, err = client.ResizeTerminal(ctx, &hostpb.ResizeTerminalRequest{SandboxId: req.SandboxID, Pid: req.PID, Terminal: terminalOut(&req.Terminal)})
	return hostFault(ctx, err, id)
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
		return cubeapi.ExecEvent{Exit: &cubeapi.ExecExit{Code: int(m.Exited.GetExitCode()), Signal: m.Exited.GetSignal(), SignalNumber: int(m.Exited.GetSignalNumber())}}
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
		stream, err = client.ReadFile(r.Context(), &hostpb.ReadFileRequest{SandboxId: q.Get("sandbox_id"), Path: q.Get("path"), User: q.Get("user"), Archive: q.Get("archive") == "true"})
		err = hostFault(r.Context(), err, id)
	}
	var first *hostpb.ReadFileResponse
	if err == nil {
		first, err = stream.Recv()
		err = hostFault(r.Context(), err, id)
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
	n, err := m.write(r.Context(), &hostpb.WriteFileTarget{SandboxId: q.Get("sandbox_id"), Path: q.Get("path"), User: q.Get("user"), Archive: q.Get("archive") == "true"}, r.Body)
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, cubeapi.FileAnswer{Envelope: cubeapi.OK(requestID(r)), Path: q.Get("path"), WrittenBytes: n})
}

func (m *Master) write(ctx context.Context, target *hostpb.WriteFileTarget, data io.Reader) (int64, error) {
	if err := checkPath(target.GetPath()); err != nil {
		return 0, err
	}
	client, id, err := m.reach(ctx, target.GetSandboxId())
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // an upload that breaks off must not look whole
	stream, err := client.WriteFile(ctx)
	if err != nil {
		return 0, hostFault(ctx, err, id)
	}
	err = stream.Send(&hostpb.WriteFileRequest{Message: &hostpb.WriteFileRequest_Target{Target: target}})
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
			return 0, fault.Wrap(fault.CallCancelled, end, "upload of %s", target.GetPath())
		}
	}
	// The reason for a failed send is in the answer.
	answer, err := stream.CloseAndRecv()
	return answer.GetWrittenBytes(), hostFault(ctx, err, id)
}
