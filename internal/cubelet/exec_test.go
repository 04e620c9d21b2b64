package cubelet_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubelet/runtime/runtimetest"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
)

// process is one that Exec started and that reads its input.
type process struct {
	t      *testing.T
	stream hostpb.HostService_ExecClient
	pid    uint32
	leave  context.CancelFunc
}

func (w *world) start(t *testing.T, id string, command ...string) *process {
	t.Helper()
	return w.begin(t, &hostpb.ExecStart{SandboxId: id, Command: command, Stdin: true})
}

func (w *world) begin(t *testing.T, start *hostpb.ExecStart) *process {
	t.Helper()
	ctx, leave := context.WithCancel(w.ctx())
	stream, err := w.host.Exec(ctx)
	check(t, err)
	check(t, stream.Send(&hostpb.ExecRequest{Message: &hostpb.ExecRequest_Start{Start: start}}))
	m, err := stream.Recv()
	check(t, err)
	if m.GetStarted().GetPid() == 0 {
		t.Fatalf("it begins with %v", m)
	}
	return &process{t, stream, m.GetStarted().GetPid(), leave}
}

func (p *process) input(b []byte) {
	p.t.Helper()
	check(p.t, p.stream.Send(&hostpb.ExecRequest{Message: &hostpb.ExecRequest_Stdin{Stdin: b}}))
}

// fill gives it input that it does not read, until no more is taken.
func (p *process) fill() {
	var sent atomic.Int64
	block := &hostpb.ExecRequest{Message: &hostpb.ExecRequest_Stdin{Stdin: bytes.Repeat([]byte("x"), 64<<10)}}
	go func() { // until the call ends
		for p.stream.Send(block) == nil {
			sent.Add(1)
		}
	}()
	for before := int64(-1); sent.Load() != before; <-time.After(300 * time.Millisecond) {
		before = sent.Load()
	}
}

// output returns the next that it says.
func (p *process) output() string {
	p.t.Helper()
	m, err := p.stream.Recv()
	check(p.t, err)
	return string(m.GetStdout())
}

// exit waits for its end and drops what it still says.
func (p *process) exit() *hostpb.ExecExited {
	p.t.Helper()
	for {
		m, err := p.stream.Recv()
		check(p.t, err)
		if e := m.GetExited(); e != nil {
			return e
		}
	}
}

func (w *world) signal(id string, pid uint32, number int32) error {
	_, err := w.host.Signal(w.ctx(), &hostpb.SignalRequest{SandboxId: id, Pid: pid, Signal: number})
	return fromGRPC(err)
}

func TestExecIsAConversation(t *testing.T) {
	w := newWorld(t).open().hold()
	id := w.create(request()).GetSandboxId()
	t.Run("input is read while it runs", func(t *testing.T) {
		p := w.start(t, id, "probe", "copy")
		for _, word := range []string{"one", "two"} {
			p.input([]byte(word))
			if got := p.output(); got != word {
				t.Errorf("%q came back as %q", word, got)
			}
		}
		check(t, p.stream.Send(&hostpb.ExecRequest{Message: &hostpb.ExecRequest_CloseStdin{CloseStdin: true}}))
		if e := p.exit(); e.GetExitCode() != 0 || e.GetSignal() != "" || e.GetSignalNumber() != 0 {
			t.Errorf("ended %v", e)
		}
	})
	t.Run("a signal passes by what nobody reads", func(t *testing.T) {
		p := w.start(t, id, "probe", "sleep", "600")
		p.fill()
		check(t, w.signal(id, p.pid, 2))
		if e := p.exit(); e.GetSignal() != "interrupt" || e.GetSignalNumber() != 2 {
			t.Errorf("ended %v", e)
		}
	})
	t.Run("the input ends with who gives it", func(t *testing.T) {
		p := w.start(t, id, "probe", "copy")
		p.input([]byte("half"))
		if got := p.output(); got != "half" {
			t.Errorf("said %q", got)
		}
		p.leave()
		const cont = 18 // changes nothing for one that runs
		runtimetest.Eventually(t, "the end of a process without input", func() bool { return errors.Is(w.signal(id, p.pid, cont), fault.NoSuchThing) })
	})
	t.Run("a terminal has a size, and hangs up", func(t *testing.T) {
		p := w.begin(t, &hostpb.ExecStart{SandboxId: id, Command: []string{"probe", "terminal"}, Stdin: true, Terminal: &hostpb.TerminalSize{Columns: 91, Rows: 31}})
		if got := p.output(); got != "91 31\r\n" {
			t.Errorf("said %q", got)
		}
		_, err := w.host.ResizeTerminal(w.ctx(), &hostpb.ResizeTerminalRequest{SandboxId: id, Pid: p.pid, Terminal: &hostpb.TerminalSize{Columns: 92, Rows: 32}})
		check(t, err)
		if got := p.output(); got != "92 32\r\n" {
			t.Errorf("said %q", got)
		}
		for name, r := range map[string]*hostpb.ResizeTerminalRequest{
			"no size":  {SandboxId: id, Pid: p.pid},
			"too wide": {SandboxId: id, Pid: p.pid, Terminal: &hostpb.TerminalSize{Columns: 10_001, Rows: 1}},
			"no rows":  {SandboxId: id, Pid: p.pid, Terminal: &hostpb.TerminalSize{Columns: 1}},
		} {
			if _, err := w.host.ResizeTerminal(w.ctx(), r); !errors.Is(fromGRPC(err), fault.InvalidInput) {
				t.Errorf("%s: %v", name, err)
			}
		}
		p.leave()
		runtimetest.Eventually(t, "the end of a process without its terminal", func() bool { return errors.Is(w.signal(id, p.pid, 18), fault.NoSuchThing) })
	})
	t.Run("what is detached goes on", func(t *testing.T) {
		p := w.begin(t, &hostpb.ExecStart{SandboxId: id, Command: []string{"probe", "sleep", "600"}, Detach: true})
		if _, err := p.stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("the call goes on: %v", err)
		}
		p.leave()
		check(t, w.signal(id, p.pid, 9))
		ctx, cancel := context.WithCancel(w.ctx())
		defer cancel()
		stream, err := w.host.Exec(ctx)
		check(t, err)
		check(t, stream.Send(&hostpb.ExecRequest{Message: &hostpb.ExecRequest_Start{Start: &hostpb.ExecStart{SandboxId: id, Command: []string{"probe"}, Detach: true, Stdin: true}}}))
		if _, err := stream.Recv(); !errors.Is(fromGRPC(err), fault.InvalidInput) {
			t.Errorf("with input: %v", err)
		}
	})
	t.Run("refusals", func(t *testing.T) {
		p := w.start(t, id, "probe", "sleep", "600")
		for name, c := range map[string]struct {
			id     string
			pid    uint32
			number int32
			want   *fault.Code
		}{
			"no such process": {id, 1 << 20, 15, fault.NoSuchThing},
			"no process":      {id, 0, 15, fault.InvalidInput},
			"no signal":       {id, p.pid, 0, fault.InvalidInput},
			"over the last":   {id, p.pid, 65, fault.InvalidInput},
			"no sandbox":      {"i0123456789abcdef01234567", p.pid, 15, fault.SandboxNotFound},
		} {
			if err := w.signal(c.id, c.pid, c.number); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %s", name, err, c.want.Name)
			}
		}
		check(t, w.signal(id, p.pid, 9))
		if e := p.exit(); e.GetSignal() != "killed" || e.GetSignalNumber() != 9 {
			t.Errorf("ended %v", e)
		}
	})
	w.delete(id)
	w.mustBeEmpty()
}
