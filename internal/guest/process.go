package guest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"google.golang.org/protobuf/proto"

	"github.com/paddock-dev/paddock/internal/envdpb"
)

// defaultPath is searched when the sandbox names no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

const (
	chunk      = 32 << 10               // of output in one event
	lastOutput = 250 * time.Millisecond // what an ended process's children may take to go on writing
	endedKept  = 30 * time.Second       // how long an ended process can be asked for
)

// process is one that the API started.
type process struct {
	pid    uint32
	tag    *string
	config *envdpb.ProcessConfig
	cmd    *exec.Cmd
	done   chan struct{} // closed when it ended and its output is out
	exited chan struct{} // closed when it ended

	mu        sync.Mutex
	input     *os.File // stdin or terminal; nil when closed
	terminal  bool
	followers map[*follower]bool
	end       *envdpb.ProcessEvent_EndEvent
}

// follower gets every event of a process. A slow one slows the process: output
// is never piled up.
type follower struct {
	ctx    context.Context
	events chan *envdpb.ProcessEvent
}

// launch is what a start needs.
type launch struct {
	config *envdpb.ProcessConfig
	user   account
	pty    *envdpb.PTY
	tag    *string
	stdin  bool
}

var (
	errNotFound = errors.New("command not found")
	errBadCwd   = errors.New("bad working directory")
)

// start starts a process; first follows it from its first byte.
func (g *Guest) start(l launch, first *follower) (*process, error) {
	s := g.current()
	env := environment(s, l)
	cwd, err := workdir(s, l)
	if err != nil {
		return nil, err
	}
	path, err := lookUp(l.config.GetCmd(), env, cwd)
	if err != nil {
		return nil, err
	}
	c := &exec.Cmd{Path: path, Args: append([]string{l.config.GetCmd()}, l.config.GetArgs()...), Env: env, Dir: cwd}
	c.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // a group of its own, to be signalled whole
		Credential: &syscall.Credential{Uid: l.user.uid, Gid: l.user.gid, Groups: l.user.groups},
	}
	p := &process{tag: l.tag, config: l.config, cmd: c, done: make(chan struct{}), exited: make(chan struct{}), followers: map[*follower]bool{}}
	if first != nil {
		p.followers[first] = true
	}
	outputs, err := p.open(l)
	if err != nil {
		return nil, err
	}
	err = g.reap.start(c)
	p.closeChildEnds(l)
	if err != nil {
		outputs.close()
		p.closeInput()
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOEXEC) {
			err = fmt.Errorf("%w: %s: %w", errNotFound, l.config.GetCmd(), err)
		}
		return nil, err
	}
	p.pid = uint32(c.Process.Pid)
	g.mu.Lock()
	g.running[p.pid] = p
	g.mu.Unlock()
	go g.follow(p, outputs)
	return p, nil
}

// output is one stream of a process and how its data is shown.
type output struct {
	file *os.File
	wrap func([]byte) *envdpb.ProcessEvent_DataEvent
}

type outputs []output

func (o outputs) close() {
	for _, one := range o {
		_ = one.file.Close() // read ends: nothing is lost
	}
}

func (p *process) open(l launch) (outputs, error) {
	if l.pty != nil {
		master, slave, err := pty.Open()
		if err != nil {
			return nil, err
		}
		size := l.pty.GetSize()
		if err := pty.Setsize(master, &pty.Winsize{Cols: uint16(size.GetCols()), Rows: uint16(size.GetRows())}); err != nil {
			return nil, errors.Join(err, master.Close(), slave.Close())
		}
		p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = slave, slave, slave
		p.cmd.SysProcAttr.Setctty = true
		p.input, p.terminal = master, true
		return outputs{{master, func(b []byte) *envdpb.ProcessEvent_DataEvent {
			return &envdpb.ProcessEvent_DataEvent{Output: &envdpb.ProcessEvent_DataEvent_Pty{Pty: b}}
		}}}, nil
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, outR.Close(), outW.Close())
	}
	p.cmd.Stdout, p.cmd.Stderr = outW, errW
	list := outputs{
		{outR, func(b []byte) *envdpb.ProcessEvent_DataEvent {
			return &envdpb.ProcessEvent_DataEvent{Output: &envdpb.ProcessEvent_DataEvent_Stdout{Stdout: b}}
		}},
		{errR, func(b []byte) *envdpb.ProcessEvent_DataEvent {
			return &envdpb.ProcessEvent_DataEvent{Output: &envdpb.ProcessEvent_DataEvent_Stderr{Stderr: b}}
		}},
	}
	if l.stdin {
		inR, inW, err := os.Pipe()
		if err != nil {
			list.close()
			return nil, errors.Join(err, outW.Close(), errW.Close())
		}
		p.cmd.Stdin, p.input = inR, inW
	}
	return list, nil
}

// closeChildEnds closes what only the child needs now.
func (p *process) closeChildEnds(l launch) {
	ends := []any{p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr}
	if l.pty != nil {
		ends = ends[:1] // all three are one file
	}
	for _, end := range ends {
		if f, ok := end.(*os.File); ok && f != nil {
			_ = f.Close() // the child has its own
		}
	}
}

// follow carries a process's output to its followers until it ended.
func (g *Guest) follow(p *process, list outputs) {
	var readers sync.WaitGroup
	for _, o := range list {
		readers.Go(func() { p.pump(o) })
	}
	err := g.reap.wait(p.cmd)
	close(p.exited)
	for _, o := range list {
		_ = o.file.SetReadDeadline(time.Now().Add(lastOutput)) // a terminal has none, and ends by itself
	}
	readers.Wait()
	p.finish(err)
	if !p.terminal {
		list.close()
	}
	p.closeInput()

	g.mu.Lock()
	delete(g.running, p.pid)
	g.ended[p.pid] = p
	g.mu.Unlock()
	close(p.done)
	time.AfterFunc(endedKept, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.ended[p.pid] == p {
			delete(g.ended, p.pid)
		}
	})
}

// pump reads one output until it ends. A child of an ended process may hold
// its output open for ever, so then each read has a bound.
func (p *process) pump(o output) {
	buffer := make([]byte, chunk)
	for {
		select {
		case <-p.exited:
			_ = o.file.SetReadDeadline(time.Now().Add(lastOutput)) // as in follow
		default:
		}
		n, err := o.file.Read(buffer)
		if n > 0 {
			p.tell(&envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_Data{Data: o.wrap(slices.Clone(buffer[:n]))}})
		}
		if err != nil {
			return
		}
	}
}

// tell hands an event to every follower that is still there.
func (p *process) tell(e *envdpb.ProcessEvent) {
	p.mu.Lock()
	list := make([]*follower, 0, len(p.followers))
	for f := range p.followers {
		list = append(list, f)
	}
	p.mu.Unlock()
	for _, f := range list {
		select {
		case f.events <- e:
		case <-f.ctx.Done():
			p.leave(f)
		}
	}
}

func (p *process) leave(f *follower) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.followers, f)
}

// join adds a follower, unless the process has ended.
func (p *process) join(f *follower) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end == nil {
		p.followers[f] = true
	}
}

func (p *process) finish(err error) {
	state := p.cmd.ProcessState
	e := &envdpb.ProcessEvent_EndEvent{Exited: state.Exited(), ExitCode: int32(state.ExitCode()), Status: state.String()}
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		e.Error = proto.String("signal: " + w.Signal().String())
	} else if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		e.Error = proto.String(err.Error())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end = e
}

func (p *process) result() *envdpb.ProcessEvent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &envdpb.ProcessEvent{Event: &envdpb.ProcessEvent_End{End: p.end}}
}

// signal signals the process with its whole group.
func (p *process) signal(s syscall.Signal) error {
	select {
	case <-p.exited:
		return errNoProcess
	default:
		return syscall.Kill(-int(p.pid), s)
	}
}

func (p *process) write(b []byte) error {
	p.mu.Lock()
	in := p.input
	p.mu.Unlock()
	if in == nil {
		return errors.New("its input is closed")
	}
	_, err := in.Write(b)
	return err
}

func (p *process) closeInput() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.input != nil {
		_ = p.input.Close() // the reader's end tells of trouble
		p.input = nil
	}
}

// find returns the process that a selector names, running or just ended.
func (g *Guest) find(s *envdpb.ProcessSelector) (*process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if tag, ok := s.GetSelector().(*envdpb.ProcessSelector_Tag); ok {
		for _, p := range g.running {
			if p.tag != nil && *p.tag == tag.Tag {
				return p, nil
			}
		}
		return nil, fmt.Errorf("%w: tag %s", errNoProcess, tag.Tag)
	}
	if p := g.running[s.GetPid()]; p != nil {
		return p, nil
	}
	if p := g.ended[s.GetPid()]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%w: pid %d", errNoProcess, s.GetPid())
}

// environment is what a process sees: the guest's PATH, the user's, then the
// sandbox's variables, then the request's.
func environment(s Settings, l launch) []string {
	vars := map[string]string{"PATH": os.Getenv("PATH"), "HOME": l.user.home, "USER": l.user.name, "LOGNAME": l.user.name}
	if vars["PATH"] == "" {
		vars["PATH"] = defaultPath
	}
	if l.pty != nil {
		vars["TERM"] = "xterm-256color"
	}
	for _, more := range []map[string]string{s.EnvVars, l.config.GetEnvs()} {
		for k, v := range more {
			vars[k] = v
		}
	}
	list := make([]string, 0, len(vars))
	for k, v := range vars {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

func workdir(s Settings, l launch) (string, error) {
	cwd := l.config.GetCwd()
	if cwd == "" {
		if cwd = s.DefaultWorkdir; cwd == "" {
			cwd = l.user.home
		}
		if info, err := os.Stat(cwd); err != nil || !info.IsDir() {
			cwd = "/" // a home that the image lacks is no reason to refuse
		}
		return cwd, nil
	}
	cwd = resolve(cwd, l.user)
	if info, err := os.Stat(cwd); err != nil || !info.IsDir() {
		return "", fmt.Errorf("%w: cwd '%s' does not exist", errBadCwd, l.config.GetCwd())
	}
	return cwd, nil
}

// resolve makes path absolute: ~ and relative paths are the user's.
func resolve(path string, u account) string {
	if path == "~" || strings.HasPrefix(path, "~/") {
		path = filepath.Join(u.home, strings.TrimPrefix(path, "~"))
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(u.home, path)
	}
	return filepath.Clean(path)
}

// lookUp finds the program called name in the PATH of env.
func lookUp(name string, env []string, cwd string) (string, error) {
	if name == "" {
		return "", fmt.Errorf("%w: the command is empty", errNotFound)
	}
	dirs := []string{""}
	if !strings.Contains(name, "/") {
		for _, kv := range env {
			if path, ok := strings.CutPrefix(kv, "PATH="); ok {
				dirs = filepath.SplitList(path)
			}
		}
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if !filepath.IsAbs(path) {
			path = filepath.Join(cwd, path)
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: %s", errNotFound, name)
}

// StartTag is the tag of the process that the template starts by itself.
const StartTag = "start"

// StartCommand starts the template's own process beside the API, as the
// sandbox's default user.
func (g *Guest) StartCommand(command []string) error {
	user, err := g.users.find(g.current().DefaultUser)
	if err != nil {
		return err
	}
	tag := StartTag
	_, err = g.start(launch{config: &envdpb.ProcessConfig{Cmd: command[0], Args: command[1:]}, user: user, tag: &tag}, nil)
	return err
}
