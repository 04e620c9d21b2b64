package cubelet

import (
	"context"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/paddock-dev/paddock/internal/envdpb"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// Exec runs one command in a sandbox.
func (s *Server) Exec(stream hostpb.HostService_ExecServer) error {
	return serve.GRPCError(s.exec(stream))
}

func (s *Server) exec(stream hostpb.HostService_ExecServer) error {
	first, err := stream.Recv()
	if err != nil {
		return fault.Wrap(fault.CallCancelled, err, "exec")
	}
	start := first.GetStart()
	if start == nil || len(start.GetCommand()) == 0 {
		return fault.New(fault.InvalidInput, "exec: the first message must name a command")
	}
	if err := checkStart(start); err != nil {
		return err
	}
	i, err := s.c.usable(start.GetSandboxId())
	if err != nil {
		return err
	}
	// Ends the reader of the client's messages, which waits in Recv, with the call.
	ctx, cancel := i.during(stream.Context())
	defer cancel()
	config := &envdpb.ProcessConfig{Cmd: start.GetCommand()[0], Args: start.GetCommand()[1:], Envs: start.GetEnvs()}
	if start.GetCwd() != "" {
		config.Cwd = proto.String(start.GetCwd())
	}
	request := &envdpb.StartRequest{Process: config, Stdin: proto.Bool(start.GetStdin()), Pty: terminal(start.GetTerminal())}
	if start.GetDetach() {
		pid, err := i.guest.detach(ctx, request, start.GetUser())
		if err != nil {
			return s.c.explain(i, err)
		}
		return stream.Send(&hostpb.ExecResponse{Message: &hostpb.ExecResponse_Started{Started: &hostpb.ExecStarted{Pid: pid}}})
	}
	events, err := i.guest.start(ctx, request, start.GetUser())
	if err != nil {
		return s.c.explain(i, err)
	}
	defer events.Close()
	ended, pid := false, uint32(0)
	defer func() {
		switch {
		case ended || pid == 0:
		case start.GetTerminal() != nil:
			hangUp(i.guest, pid)
		case start.GetStdin():
			endInput(i.guest, pid)
		}
	}()
	for events.Receive() {
		e := events.Msg().GetEvent()
		if pid == 0 && e.GetStart().GetPid() > 0 { // once: a guest may say it again
			pid = e.GetStart().GetPid()
			go feed(ctx, stream, i.guest, pid, start.GetTerminal() != nil)
		}
		if m := execMessage(e); m != nil {
			if err := stream.Send(m); err != nil {
				return fault.Wrap(fault.CallCancelled, err, "exec")
			}
			ended = ended || m.GetExited() != nil
		}
	}
	if err := events.Err(); err != nil {
		return s.c.explain(i, rpcFault(err))
	}
	if !ended {
		return s.c.explain(i, fault.New(fault.GuestUnreachable, "exec in sandbox %s: the answer broke off", start.GetSandboxId()))
	}
	return nil
}

func execMessage(e *envdpb.ProcessEvent) *hostpb.ExecResponse {
	switch e := e.GetEvent().(type) {
	case *envdpb.ProcessEvent_Start:
		return &hostpb.ExecResponse{Message: &hostpb.ExecResponse_Started{Started: &hostpb.ExecStarted{Pid: e.Start.GetPid()}}}
	case *envdpb.ProcessEvent_Data:
		if b := e.Data.GetStderr(); len(b) > 0 {
			return &hostpb.ExecResponse{Message: &hostpb.ExecResponse_Stderr{Stderr: b}}
		}
		if b := e.Data.GetPty(); len(b) > 0 {
			return &hostpb.ExecResponse{Message: &hostpb.ExecResponse_Stdout{Stdout: b}}
		}
		return &hostpb.ExecResponse{Message: &hostpb.ExecResponse_Stdout{Stdout: e.Data.GetStdout()}}
	case *envdpb.ProcessEvent_End:
		// Other words there, such as those of a plain exit status, name no signal.
		signal, ok := strings.CutPrefix(words(e.End.GetError()), "signal: ")
		if !ok {
			signal = ""
		}
		return &hostpb.ExecResponse{Message: &hostpb.ExecResponse_Exited{Exited: &hostpb.ExecExited{ExitCode: e.End.GetExitCode(), Signal: signal, SignalNumber: signalNumber(signal)}}}
	}
	return nil
}

const lastSignal = 64

// signalNumber returns the number of a signal that the guest names, 0 when it
// is none of this system's.
func signalNumber(name string) int32 {
	name = strings.TrimSuffix(name, " (core dumped)")
	for n := int32(1); n <= lastSignal && name != ""; n++ {
		if syscall.Signal(n).String() == name {
			return n
		}
	}
	return 0
}

func processOf(pid uint32) *envdpb.ProcessSelector {
	return &envdpb.ProcessSelector{Selector: &envdpb.ProcessSelector_Pid{Pid: pid}}
}

const terminalMax = 10_000 // columns or rows

func checkStart(r *hostpb.ExecStart) error {
	if r.GetDetach() && (r.GetStdin() || r.GetTerminal() != nil) {
		return fault.New(fault.InvalidInput, "exec: a command that nobody waits for has no input and no terminal")
	}
	return checkTerminal(r.GetTerminal())
}

func checkTerminal(t *hostpb.TerminalSize) error {
	if t != nil && (t.GetColumns() == 0 || t.GetRows() == 0 || t.GetColumns() > terminalMax || t.GetRows() > terminalMax) {
		return fault.New(fault.InvalidInput, "terminal of %d columns and %d rows: each is 1 to %d", t.GetColumns(), t.GetRows(), terminalMax)
	}
	return nil
}

func terminal(t *hostpb.TerminalSize) *envdpb.PTY {
	if t == nil {
		return nil
	}
	return &envdpb.PTY{Size: &envdpb.PTY_Size{Cols: t.GetColumns(), Rows: t.GetRows()}}
}

// ResizeTerminal changes the size of a process's terminal.
func (s *Server) ResizeTerminal(ctx context.Context, r *hostpb.ResizeTerminalRequest) (*hostpb.ResizeTerminalResponse, error) {
	return &hostpb.ResizeTerminalResponse{}, serve.GRPCError(s.resize(ctx, r))
}

func (s *Server) resize(ctx context.Context, r *hostpb.ResizeTerminalRequest) error {
	if r.GetPid() == 0 || r.GetTerminal() == nil {
		return fault.New(fault.InvalidInput, "resize: name a process and a size")
	}
	if err := checkTerminal(r.GetTerminal()); err != nil {
		return err
	}
	i, err := s.c.usable(r.GetSandboxId())
	if err != nil {
		return err
	}
	ctx, cancel := i.during(ctx)
	defer cancel()
	return s.c.explain(i, rpcFault(i.guest.resize(ctx, processOf(r.GetPid()), terminal(r.GetTerminal()))))
}

// endInput ends the input of a process whose client went away in its midst: it
// would else wait for more until its time is over.
func endInput(g *guestClient, pid uint32) {
	ctx, cancel := context.WithTimeout(context.Background(), inputTime)
	defer cancel()
	_ = g.closeStdin(ctx, processOf(pid)) // one that ended meanwhile needs it no more
}

// hangUp tells a process that its terminal is gone.
func hangUp(g *guestClient, pid uint32) {
	ctx, cancel := context.WithTimeout(context.Background(), inputTime)
	defer cancel()
	_ = g.signal(ctx, processOf(pid), int32(syscall.SIGHUP)) // one that ended meanwhile needs it no more
}

const inputTime = 2 * time.Second

// Signal sends a signal to a process that Exec started.
func (s *Server) Signal(ctx context.Context, r *hostpb.SignalRequest) (*hostpb.SignalResponse, error) {
	return &hostpb.SignalResponse{}, serve.GRPCError(s.signal(ctx, r))
}

func (s *Server) signal(ctx context.Context, r *hostpb.SignalRequest) error {
	if r.GetPid() == 0 || r.GetSignal() < 1 || r.GetSignal() > lastSignal {
		return fault.New(fault.InvalidInput, "signal %d to process %d of sandbox %s: a signal is 1 to %d, and a process is over 0", r.GetSignal(), r.GetPid(), r.GetSandboxId(), lastSignal)
	}
	i, err := s.c.usable(r.GetSandboxId())
	if err != nil {
		return err
	}
	ctx, cancel := i.during(ctx)
	defer cancel()
	return s.c.explain(i, rpcFault(i.guest.signal(ctx, processOf(r.GetPid()), r.GetSignal())))
}

// feed carries the client's input to the process until either ends. The
// process's own end is told by its events, so failures here end only the input.
// A process that does not read holds it up: a signal that must not wait goes by
// Signal.
func feed(ctx context.Context, stream hostpb.HostService_ExecServer, g *guestClient, pid uint32, typed bool) {
	target := processOf(pid)
	for ctx.Err() == nil {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		switch m := m.GetMessage().(type) {
		case *hostpb.ExecRequest_Stdin:
			err = g.send(ctx, target, m.Stdin, typed)
		case *hostpb.ExecRequest_CloseStdin:
			if typed {
				return // a terminal has no end: whoever left it hangs up
			}
			err = g.closeStdin(ctx, target)
		case *hostpb.ExecRequest_Signal:
			err = g.signal(ctx, target, m.Signal)
		}
		if err != nil {
			return
		}
	}
}
