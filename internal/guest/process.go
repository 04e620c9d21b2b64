package guest

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/paddock-dev/paddock/internal/envdpb"
	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	chunk = 32 << 10 // of output in one event
	// lastOutput is how long children of an ended process may go on writing
	// to its followers; a server put into the background never ends.
	lastOutput = 500 * time.Millisecond
	// pipeSize is what a pipe can hold: all that an ended process can have
	// left unread.
	pipeSize = 64 << 10
)

// process is one that the API started. Output goes to its followers, and the
// slowest of them sets its pace: nothing is piled up. Without followers output
// is dropped.
type process struct {
	order   uint64
	config  *envdpb.ProcessConfig
	tag     *string
	child   *child // nil if it could not be started (a start command)
	in      *input // nil if it reads an empty input
	outputs []output
	ended   chan struct{} // closed when it ended and its output is out
	record  *recorder     // of its output; nil: none

	mu        sync.Mutex
	followers map[*follower]struct{}
	ring      *ring // nil: no output is kept
	end       *envdpb.ProcessEvent_EndEvent
}

// output is one stream of a process, and how its data is shown.
type output struct {
	file *os.File
	wrap func([]byte) *envdpb.ProcessEvent_DataEvent
}

// follower gets every event of a process until gone is closed.
type follower struct {
	events chan *envdpb.ProcessEvent
	gone   <-chan struct{}
}

func (p *process) pid() uint32 {
	if p.child == nil {
		return 0
	}
	return uint32(p.child.pid)
}

// start starts a process; first, if any, follows it from its first byte.
func (g *Guest) start(l launch, first *follower) (*process, error) {
	prog, err := prepare(g.settings.current(), l)
	if err != nil {
		return nil, err
	}
	p := &process{config: l.config, tag: l.tag, ended: make(chan struct{}), followers: map[*follower]struct{}{}}
	if l.ring {
		p.ring = &ring{}
	}
	if l.tag != nil && *l.tag == StartTag {
		p.record = g.record
	}
	if first != nil {
		p.followers[first] = struct{}{}
	}
	far, err := p.open(l)
	if err == nil {
		p.child, err = g.reaper.spawn(func() (int, error) { return prog.fork(l.user, far, l.pty != nil) })
	}
	closeFDs(far)
	if err != nil {
		p.close()
		return nil, ofDescriptors(err)
	}
	if !g.table.add(p) {
		_ = g.reaper.signal(p.child, syscall.SIGKILL) // the guest ends, so this one does too
	}
	g.work.Go(func() { g.follow(p) })
	return p, nil
}

// ofDescriptors names what opening pipes and terminals can meet.
func ofDescriptors(err error) error {
	if r := (*refusal)(nil); errors.As(err, &r) {
		return err
	}
	if errors.Is(err, syscall.ENOENT) {
		return refuse(connect.CodeFailedPrecondition, fault.StateConflict, "the sandbox has no terminals: /dev/ptmx or /dev/pts is missing")
	}
	return ofFile("pipe or terminal", err)
}

// open makes the input and the outputs, and returns the child's ends.
func (p *process) open(l launch) (far []uintptr, err error) {
	if l.pty != nil {
		near, fd, err := openTerminal(l.pty.GetSize())
		if err != nil {
			return nil, err
		}
		p.in = newInput(near, true)
		p.outputs = []output{{near, func(b []byte) *envdpb.ProcessEvent_DataEvent {
			return &envdpb.ProcessEvent_DataEvent{Output: &envdpb.ProcessEvent_DataEvent_Pty{Pty: b}}
		}}}
		return []uintptr{uintptr(fd), uintptr(fd), uintptr(fd)}, nil
	}
	in := [2]int{-1, -1}
	if err := syscall.Pipe2(in[:], syscall.O_CLOEXEC); err != nil {
		return nil, err
	}
	far = append(far, uintptr(in[0]))
	if l.stdin {
		file, err := nearFile(in[1])
		if err != nil {
			return far, err
		}
		p.in = newInput(file, false)
	} else {
		_ = syscall.Close(in[1]) // a pipe without a writer reads as empty
	}
	for _, wrap := range []func([]byte) *envdpb.ProcessEvent_DataEvent{
		func(b []byte) *envdpb.ProcessEvent_DataEvent {
			return &envdpb.ProcessEvent_DataEvent{Output: &envdpb.ProcessEvent_DataEvent_Stdout{Stdout: b}}
		},
		func(b []byte) *envdpb.ProcessEvent_DataEvent {
			return &envdpb.ProcessEvent_DataEvent{Output: &envdpb.ProcessEvent_DataEvent_Stderr{Stderr: b}}
		},
	} {
		out := [2]int{-1, -1}
		if err := syscall.Pipe2(out[:], syscall.O_CLOEXEC); err != nil {
			return far, err
		}
		far = append(far, uintptr(out[1]))
		file, err := nearFile(out[0])
		if err != nil {
			return far, err
		}
		p.outputs = append(p.outputs, output{file, wrap})
	}
	return far, nil
}

// nearFile makes our end of a pipe one that can be given deadlines. The far
// end stays as programs expect it.
func nearFile(fd int) (*os.File, error) {
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, syscall.Close(fd))
	}
	return os.NewFile(uintptr(fd), "pipe"), nil
}

func closeFDs(list []uintptr) {
	for i, fd := range list {
		if i == 0 || fd != list[0] { // the three ends of a terminal are one
			_ = syscall.Close(int(fd)) // the child has its own
		}
	}
}

// close closes our ends.
func (p *process) close() {
	if p.in != nil {
		p.in.close()
	}
	for _, o := range p.outputs {
		_ = o.file.Close() // read ends: nothing is lost
	}
}

// follow relays output until the process ended, says how, and then drops what
// its children still write: closing their pipe would end them.
func (g *Guest) follow(p *process) {
	var pumps, drains sync.WaitGroup
	for _, o := range p.outputs {
		ready := make(chan struct{})
		pumps.Add(1)
		drains.Go(func() {
			defer o.file.Close()
			open := p.pump(o)
			pumps.Done()
			<-ready
			if open {
				_, _ = io.Copy(io.Discard, o.file) // ends with its writers
			}
		})
		defer close(ready)
	}
	<-p.child.done
	for _, o := range p.outputs {
		_ = o.file.SetReadDeadline(time.Now().Add(lastOutput)) // a closed file needs none
	}
	pumps.Wait()
	p.finish(p.child.status)
	g.table.retire(p)
	if p.in != nil {
		p.in.close()
	}
	close(p.ended)
	g.work.Go(drains.Wait)
}

// pump relays one output until it ends, or until its deadline, when it tells
// that the output is still open.
func (p *process) pump(o output) (open bool) {
	buffer := make([]byte, chunk)
	for {
		n, err := o.file.Read(buffer)
		p.tell(o, buffer[:n])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return p.rest(o, buffer)
		case err != nil:
			return false // a terminal ends with EIO, a pipe with EOF
		}
	}
}

// rest relays what the ended process itself left in the pipe while its
// followers were slow.
func (p *process) rest(o output, buffer []byte) (open bool) {
	if err := o.file.SetReadDeadline(time.Time{}); err != nil {
		return false
	}
	raw, err := o.file.SyscallConn()
	if err != nil {
		return false
	}
	for sum := 0; sum < pipeSize; {
		n, err := 0, error(nil)
		if direct := raw.Read(func(fd uintptr) bool {
			n, err = syscall.Read(int(fd), buffer)
			return true
		}); direct != nil {
			return false
		}
		if n <= 0 {
			return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR)
		}
		p.tell(o, buffer[:n])
		sum += n
	}
	return true
}

// tell hands data to every follower that is still there.
func (p *process) tell(o output, data []byte) {
	if len(data) == 0 {
		return
	}
	if p.record != nil {
		p.record.add(data)
	}
	p.mu.Lock()
	if len(p.followers) == 0 && p.ring == nil {
		p.mu.Unlock()
		return
	}
	e := &envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_Data{Data: o.wrap(append([]byte(nil), data...))}}
	if p.ring != nil {
		p.ring.add(e, len(data))
	}
	list := make([]*follower, 0, len(p.followers))
	for f := range p.followers {
		list = append(list, f)
	}
	p.mu.Unlock()
	for _, f := range list {
		select {
		case f.events <- e:
		case <-f.gone:
		}
	}
}

// join adds a follower, and returns the output that was kept for it.
func (p *process) join(f *follower) []*envdpb.ProcessEvent {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end == nil {
		p.followers[f] = struct{}{}
	}
	if p.ring == nil {
		return nil
	}
	return p.ring.all()
}

func (p *process) leave(f *follower) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.followers, f)
}

func (p *process) finish(w syscall.WaitStatus) {
	e := &envdpb.ProcessEvent_EndEvent{ExitCode: int32(w.ExitStatus()), Exited: w.Exited(), Status: statusText(w)}
	if w.Signaled() || e.ExitCode != 0 {
		e.Error = proto.String(e.Status)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end = e
}

// statusText is how os/exec words it: clients read these words.
func statusText(w syscall.WaitStatus) string {
	if w.Signaled() {
		text := "signal: " + w.Signal().String()
		if w.CoreDump() {
			text += " (core dumped)"
		}
		return text
	}
	return "exit status " + itoa(w.ExitStatus())
}

// result is how the process ended; only after ended.
func (p *process) result() *envdpb.ProcessEvent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_End{End: p.end}}
}

// expire ends p when at is reached, unless it ended before.
func (g *Guest) expire(p *process, at time.Time) {
	g.work.Go(func() {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		select {
		case <-p.child.done:
		case <-timer.C:
			_ = g.reaper.signal(p.child, syscall.SIGKILL) // one that ended meanwhile needs none
		}
	})
}

// input is what a process reads.
type input struct {
	file     *os.File
	terminal bool
	turn     chan struct{} // holds one token: writes of several calls do not mix
}

func newInput(f *os.File, terminal bool) *input {
	in := &input{file: f, terminal: terminal, turn: make(chan struct{}, 1)}
	in.turn <- struct{}{}
	return in
}

// write writes all of b, unless ctx ends first: a process need not read.
func (in *input) write(ctx context.Context, b []byte) error {
	select {
	case <-in.turn:
		defer func() { in.turn <- struct{}{} }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := in.file.SetWriteDeadline(time.Time{}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		_ = in.file.SetWriteDeadline(time.Unix(1, 0)) // a closed file needs none
	})
	_, err := in.file.Write(b)
	if !stop() && err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (in *input) close() { _ = in.file.Close() } // a second close changes nothing
