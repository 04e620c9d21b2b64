package guest

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/paddock-dev/paddock/internal/envdpb"
	"github.com/paddock-dev/paddock/internal/fault"
)

// StartTag is the tag of the process that the template starts by itself.
const StartTag = "start"

const (
	keepalive     = 90 * time.Second // between signs of life, unless the caller asks otherwise
	longestSignal = 64
)

// processAPI is process.Process of the envd protocol.
type processAPI struct{ g *Guest }

var _ envdpb.ProcessHandler = (*processAPI)(nil)

// StartCommand starts the template's own process beside the API, as the
// default user. Its last output is kept for whoever connects to StartTag. If
// it cannot start, StartTag tells why.
func (g *Guest) StartCommand(command []string) {
	tag := StartTag
	l := launch{config: &envdpb.ProcessConfig{Cmd: command[0], Args: command[1:]}, tag: &tag, ring: true}
	user, err := g.owner("")
	if err == nil {
		l.user = user
		_, err = g.start(l, nil)
	}
	if err == nil {
		return
	}
	g.log.Error("start command failed", slog.String("error", err.Error()))
	p := &process{config: l.config, tag: &tag, ring: &ring{}, ended: make(chan struct{})}
	p.end = &envdpb.ProcessEvent_EndEvent{ExitCode: 127, Status: "not started", Error: proto.String(err.Error())}
	close(p.ended)
	g.table.retire(p)
}

func (a *processAPI) List(context.Context, *connect.Request[envdpb.ListRequest]) (*connect.Response[envdpb.ListResponse], error) {
	answer := &envdpb.ListResponse{}
	for _, p := range a.g.table.list() {
		answer.Processes = append(answer.Processes, &envdpb.ProcessInfo{Config: p.config, Pid: p.pid(), Tag: p.tag})
	}
	return connect.NewResponse(answer), nil
}

// Start runs a process and follows it. The call's own deadline ends the
// process; a caller that only goes away leaves it running.
func (a *processAPI) Start(ctx context.Context, r *connect.Request[envdpb.StartRequest], stream *connect.ServerStream[envdpb.StartResponse]) error {
	user, err := a.g.owner(basicUser(r.Header()))
	if err != nil {
		return err
	}
	if r.Msg.GetProcess() == nil {
		return badInput("the request names no process")
	}
	f, leave := newFollower()
	defer leave()
	m := r.Msg
	p, err := a.g.start(launch{config: m.GetProcess(), user: user, pty: m.GetPty(), tag: m.Tag, stdin: m.Stdin == nil || m.GetStdin()}, f)
	if err != nil {
		return err
	}
	defer p.leave(f)
	if at, ok := ctx.Deadline(); ok {
		a.g.expire(p, at)
	}
	return relay(ctx, p, f, nil, interval(r.Header()), func(e *envdpb.ProcessEvent) error {
		return stream.Send(&envdpb.StartResponse{Event: e})
	})
}

// Connect follows a process from now on.
func (a *processAPI) Connect(ctx context.Context, r *connect.Request[envdpb.ConnectRequest], stream *connect.ServerStream[envdpb.ConnectResponse]) error {
	p, err := a.g.table.find(r.Msg.GetProcess(), true)
	if err != nil {
		return err
	}
	f, leave := newFollower()
	defer leave()
	kept := p.join(f)
	defer p.leave(f)
	return relay(ctx, p, f, kept, interval(r.Header()), func(e *envdpb.ProcessEvent) error {
		return stream.Send(&envdpb.ConnectResponse{Event: e})
	})
}

// newFollower returns a follower and what ends it: one that stops listening
// must not hold its process up.
func newFollower() (f *follower, leave func()) {
	gone := make(chan struct{})
	return &follower{events: make(chan *envdpb.ProcessEvent), gone: gone}, func() { close(gone) }
}

// relay sends start, what was kept, what the process writes, and end.
func relay(ctx context.Context, p *process, f *follower, kept []*envdpb.ProcessEvent, every time.Duration, send func(*envdpb.ProcessEvent) error) error {
	if err := send(&envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_Start{Start: &envdpb.ProcessEvent_StartEvent{Pid: p.pid()}}}); err != nil {
		return err
	}
	for _, e := range kept {
		if err := send(e); err != nil {
			return err
		}
	}
	quiet := time.NewTimer(every)
	defer quiet.Stop()
	for {
		var e *envdpb.ProcessEvent
		select {
		case e = <-f.events:
		case <-quiet.C:
			e = &envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_Keepalive{Keepalive: &envdpb.ProcessEvent_KeepAlive{}}}
		case <-p.ended:
			return send(p.result())
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := send(e); err != nil {
			return err
		}
		quiet.Reset(every)
	}
}

// interval is how often the caller wants a sign of life, in whole seconds.
func interval(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Keepalive-Ping-Interval"))
	if err != nil || n < 1 || n > 3600 {
		return keepalive
	}
	return time.Duration(n) * time.Second
}

func (a *processAPI) Update(_ context.Context, r *connect.Request[envdpb.UpdateRequest]) (*connect.Response[envdpb.UpdateResponse], error) {
	p, err := a.g.table.find(r.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if size := r.Msg.GetPty().GetSize(); size != nil {
		if p.in == nil || !p.in.terminal {
			return nil, noTerminal(p)
		}
		if err := resize(p.in.file, size); err != nil {
			return nil, ofInput(p, err)
		}
	}
	return connect.NewResponse(&envdpb.UpdateResponse{}), nil
}

func noTerminal(p *process) error {
	return refuse(connect.CodeFailedPrecondition, fault.StateConflict, "process %d has no terminal", p.pid())
}

func (a *processAPI) SendInput(ctx context.Context, r *connect.Request[envdpb.SendInputRequest]) (*connect.Response[envdpb.SendInputResponse], error) {
	p, err := a.g.table.find(r.Msg.GetProcess(), false)
	if err == nil {
		err = p.write(ctx, r.Msg.GetInput())
	}
	return connect.NewResponse(&envdpb.SendInputResponse{}), err
}

func (a *processAPI) StreamInput(ctx context.Context, stream *connect.ClientStream[envdpb.StreamInputRequest]) (*connect.Response[envdpb.StreamInputResponse], error) {
	var p *process
	for stream.Receive() {
		var err error
		switch e := stream.Msg().GetEvent().(type) {
		case *envdpb.StreamInputRequest_Start:
			p, err = a.g.table.find(e.Start.GetProcess(), false)
		case *envdpb.StreamInputRequest_Data:
			if p == nil {
				return nil, badInput("data came before start")
			}
			err = p.write(ctx, e.Data.GetInput())
		}
		if err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(&envdpb.StreamInputResponse{}), stream.Err()
}

// write feeds the process. A terminal takes either kind of input.
func (p *process) write(ctx context.Context, in *envdpb.ProcessInput) error {
	data := in.GetStdin()
	if typed, ok := in.GetInput().(*envdpb.ProcessInput_Pty); ok {
		data = typed.Pty
		if p.in != nil && !p.in.terminal {
			return noTerminal(p)
		}
	}
	if p.in == nil {
		return refuse(connect.CodeFailedPrecondition, fault.StateConflict, "process %d was started without an input", p.pid())
	}
	return ofInput(p, p.in.write(ctx, data))
}

func ofInput(p *process, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrClosed), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EIO):
		return refuse(connect.CodeFailedPrecondition, fault.StateConflict, "the input of process %d is closed", p.pid())
	}
	return err
}

func (a *processAPI) SendSignal(_ context.Context, r *connect.Request[envdpb.SendSignalRequest]) (*connect.Response[envdpb.SendSignalResponse], error) {
	p, err := a.g.table.find(r.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	number := r.Msg.GetSignal()
	if number < 1 || number > longestSignal {
		return nil, badInput("%d is not a signal", number)
	}
	switch err := a.g.reaper.signal(p.child, syscall.Signal(number)); {
	case errors.Is(err, syscall.ESRCH):
		return nil, refuse(connect.CodeNotFound, fault.NoSuchThing, "process with pid %d not found", p.pid())
	case err != nil:
		return nil, refuse(connect.CodeInternal, fault.RuntimeFailed, "signal process %d: %s", p.pid(), err.Error())
	}
	return connect.NewResponse(&envdpb.SendSignalResponse{}), nil
}

// CloseStdin ends the input; doing so twice is no error.
func (a *processAPI) CloseStdin(_ context.Context, r *connect.Request[envdpb.CloseStdinRequest]) (*connect.Response[envdpb.CloseStdinResponse], error) {
	p, err := a.g.table.find(r.Msg.GetProcess(), false)
	switch {
	case err != nil:
		return nil, err
	case p.in == nil:
		return nil, refuse(connect.CodeFailedPrecondition, fault.StateConflict, "process %d was started without an input", p.pid())
	case p.in.terminal:
		return nil, refuse(connect.CodeFailedPrecondition, fault.StateConflict, "a terminal has no input to close: send ctrl-D")
	}
	p.in.close()
	return connect.NewResponse(&envdpb.CloseStdinResponse{}), nil
}

// basicUser is the user that a request names; the password is of no account.
func basicUser(h http.Header) string {
	given, ok := strings.CutPrefix(h.Get("Authorization"), "Basic ")
	if !ok {
		return ""
	}
	raw, err := base64.StdEncoding.DecodeString(given)
	if err != nil {
		return ""
	}
	// Only the last colon ends the name: a name may be user:group.
	name := string(raw)
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		name = name[:i]
	}
	return name
}
