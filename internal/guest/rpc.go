package guest

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/creack/pty"

	"github.com/paddock-dev/paddock/internal/envdpb"
)

// HeaderCode carries the fault code of a refusal beside the Connect code,
// which is too coarse to tell a missing program from a missing process.
const HeaderCode = "X-Paddock-Code"

// keepalive is how often a quiet stream shows that it lives.
const keepalive = 50 * time.Second

// processAPI is process.Process of the envd protocol.
type processAPI struct{ g *Guest }

var _ envdpb.ProcessHandler = (*processAPI)(nil)

func (a *processAPI) List(context.Context, *connect.Request[envdpb.ListRequest]) (*connect.Response[envdpb.ListResponse], error) {
	a.g.mu.Lock()
	defer a.g.mu.Unlock()
	answer := &envdpb.ListResponse{}
	for _, p := range a.g.running {
		answer.Processes = append(answer.Processes, &envdpb.ProcessInfo{Config: p.config, Pid: p.pid, Tag: p.tag})
	}
	return connect.NewResponse(answer), nil
}

// Start runs a process and follows it. The call's own deadline ends the
// process; a caller that only goes away leaves it running.
func (a *processAPI) Start(ctx context.Context, r *connect.Request[envdpb.StartRequest], stream *connect.ServerStream[envdpb.StartResponse]) error {
	user, err := a.user(r.Header())
	if err != nil {
		return err
	}
	f, stop := newFollower(ctx)
	defer stop()
	m := r.Msg
	p, err := a.g.start(launch{config: m.GetProcess(), user: user, pty: m.GetPty(), tag: m.Tag, stdin: m.Stdin == nil || m.GetStdin()}, f)
	if err != nil {
		return refusal(err)
	}
	err = relay(ctx, p, f, func(e *envdpb.ProcessEvent) error { return stream.Send(&envdpb.StartResponse{Event: e}) })
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		_ = p.signal(sigKill) // one that ended meanwhile needs none
	}
	return err
}

// Connect follows a process that runs, from now on.
func (a *processAPI) Connect(ctx context.Context, r *connect.Request[envdpb.ConnectRequest], stream *connect.ServerStream[envdpb.ConnectResponse]) error {
	p, err := a.g.find(r.Msg.GetProcess())
	if err != nil {
		return refusal(err)
	}
	f, stop := newFollower(ctx)
	defer stop()
	p.join(f)
	return relay(ctx, p, f, func(e *envdpb.ProcessEvent) error { return stream.Send(&envdpb.ConnectResponse{Event: e}) })
}

// newFollower returns a follower and what ends it: one that stops listening
// must not hold its process up.
func newFollower(ctx context.Context) (*follower, context.CancelFunc) {
	own, stop := context.WithCancel(ctx)
	return &follower{ctx: own, events: make(chan *envdpb.ProcessEvent)}, stop
}

// relay sends start, what the process writes, and end.
func relay(ctx context.Context, p *process, f *follower, send func(*envdpb.ProcessEvent) error) error {
	defer p.leave(f)
	if err := send(&envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_Start{Start: &envdpb.ProcessEvent_StartEvent{Pid: p.pid}}}); err != nil {
		return err
	}
	tick := time.NewTicker(keepalive)
	defer tick.Stop()
	for {
		select {
		case e := <-f.events:
			if err := send(e); err != nil {
				return err
			}
		case <-tick.C:
			if err := send(&envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_Keepalive{Keepalive: &envdpb.ProcessEvent_KeepAlive{}}}); err != nil {
				return err
			}
		case <-p.done:
			return send(p.result())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *processAPI) Update(_ context.Context, r *connect.Request[envdpb.UpdateRequest]) (*connect.Response[envdpb.UpdateResponse], error) {
	p, err := a.g.find(r.Msg.GetProcess())
	if err != nil {
		return nil, refusal(err)
	}
	if size := r.Msg.GetPty().GetSize(); size != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.terminal || p.input == nil {
			return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("the process has no terminal"))
		}
		if err := pty.Setsize(p.input, &pty.Winsize{Cols: uint16(size.GetCols()), Rows: uint16(size.GetRows())}); err != nil {
			return nil, refusal(err)
		}
	}
	return connect.NewResponse(&envdpb.UpdateResponse{}), nil
}

func (a *processAPI) SendInput(_ context.Context, r *connect.Request[envdpb.SendInputRequest]) (*connect.Response[envdpb.SendInputResponse], error) {
	if err := a.input(r.Msg.GetProcess(), r.Msg.GetInput()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&envdpb.SendInputResponse{}), nil
}

func (a *processAPI) StreamInput(_ context.Context, stream *connect.ClientStream[envdpb.StreamInputRequest]) (*connect.Response[envdpb.StreamInputResponse], error) {
	var target *envdpb.ProcessSelector
	for stream.Receive() {
		switch e := stream.Msg().GetEvent().(type) {
		case *envdpb.StreamInputRequest_Start:
			target = e.Start.GetProcess()
		case *envdpb.StreamInputRequest_Data:
			if target == nil {
				return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("data came before start"))
			}
			if err := a.input(target, e.Data.GetInput()); err != nil {
				return nil, err
			}
		}
	}
	return connect.NewResponse(&envdpb.StreamInputResponse{}), stream.Err()
}

func (a *processAPI) input(s *envdpb.ProcessSelector, in *envdpb.ProcessInput) error {
	p, err := a.g.find(s)
	if err != nil {
		return refusal(err)
	}
	data := in.GetStdin()
	if _, ok := in.GetInput().(*envdpb.ProcessInput_Pty); ok {
		data = in.GetPty()
	}
	if err := p.write(data); err != nil {
		return connect.NewError(connect.CodeFailedPrecondition, err)
	}
	return nil
}

func (a *processAPI) SendSignal(_ context.Context, r *connect.Request[envdpb.SendSignalRequest]) (*connect.Response[envdpb.SendSignalResponse], error) {
	p, err := a.g.find(r.Msg.GetProcess())
	if err == nil {
		err = p.signal(syscall.Signal(r.Msg.GetSignal()))
	}
	if err != nil {
		return nil, refusal(err)
	}
	return connect.NewResponse(&envdpb.SendSignalResponse{}), nil
}

func (a *processAPI) CloseStdin(_ context.Context, r *connect.Request[envdpb.CloseStdinRequest]) (*connect.Response[envdpb.CloseStdinResponse], error) {
	p, err := a.g.find(r.Msg.GetProcess())
	if err != nil {
		return nil, refusal(err)
	}
	if p.terminal {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("a terminal has no input to close: send ctrl-D"))
	}
	p.closeInput()
	return connect.NewResponse(&envdpb.CloseStdinResponse{}), nil
}

// user is the account that a request names as its Basic user, else the
// sandbox's.
func (a *processAPI) user(h http.Header) (account, error) {
	name := a.g.current().DefaultUser
	if b, ok := strings.CutPrefix(h.Get("Authorization"), "Basic "); ok {
		raw, err := base64.StdEncoding.DecodeString(b)
		if given, _, _ := strings.Cut(string(raw), ":"); err == nil && given != "" {
			name = given
		}
	}
	u, err := a.g.users.find(name)
	if err != nil {
		return u, connect.NewError(connect.CodeUnauthenticated, err)
	}
	return u, nil
}

func refusal(err error) error {
	code, name := connect.CodeInternal, ""
	switch {
	case errors.Is(err, errNotFound):
		code, name = connect.CodeNotFound, "command_not_found"
	case errors.Is(err, errNoProcess), errors.Is(err, syscall.ESRCH):
		code = connect.CodeNotFound
	case errors.Is(err, errBadCwd):
		code, name = connect.CodeInvalidArgument, "invalid_input"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		code = connect.CodePermissionDenied
	}
	e := connect.NewError(code, err)
	if name != "" {
		e.Meta().Set(HeaderCode, name)
	}
	return e
}
