package cubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/paddock-dev/paddock/internal/envdpb"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/sandbox"
)

const (
	answerMax  = 200     // bytes of an answer that a message shows
	outputTail = 1 << 10 // bytes of a program's last output that a message shows
	headerMax  = 64 << 10
	killTime   = 2 * time.Second
)

// probeOf reads a probe from the wire; nil for none.
func probeOf(m *hostpb.Probe) (*sandbox.Probe, error) {
	if m == nil {
		return nil, nil
	}
	ms := sandbox.Milliseconds
	p := &sandbox.Probe{
		InitialDelay: ms(m.GetInitialDelayMs()), Timeout: ms(m.GetTimeoutMs()), Period: ms(m.GetPeriodMs()), TryTimeout: ms(m.GetTryTimeoutMs()),
		Successes: int(m.GetSuccessThreshold()), Failures: int(m.GetFailureThreshold()),
		TCPPort: int(m.GetTcpSocket().GetPort()), Exec: m.GetExec().GetCommand(),
	}
	if h := m.GetHttpGet(); h != nil {
		p.HTTP = &sandbox.HTTPProbe{Port: int(h.GetPort()), Path: h.GetPath(), Host: h.GetHost()}
		for _, e := range h.GetHeaders() {
			p.HTTP.Headers = append(p.HTTP.Headers, sandbox.Header{Name: e.GetName(), Value: e.GetValue()})
		}
	}
	return p, p.Check()
}

// serveWell starts the sandbox's command and returns once its probe passed. What
// the command says meanwhile is listened to, for the message of a failure.
func (c *Cubelet) serveWell(ctx context.Context, s *instance) error {
	own := &program{}
	if len(s.entry.Command) > 0 {
		listening, stop := context.WithCancel(ctx)
		events, err := s.guest.launch(listening, s.entry.Command)
		if err != nil {
			stop()
			return err
		}
		defer own.follow(events, stop)()
	}
	return s.whileAlive(ctx, func(alive context.Context) error {
		t := ask(alive, s.entry.Probe, s.answer)
		switch {
		case t.last == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err() // nobody waits for it any more
		case alive.Err() != nil:
			t.outcome = fmt.Sprintf("the sandbox ended after %s: %s", short(t.took), context.Cause(alive))
		}
		return fault.New(fault.ProbeFailed, "sandbox %s: probe %s: %s, %d tries; last answer: %s; %s", s.id, s.entry.Probe, t.outcome, t.count, t.last, own.describe(len(s.entry.Command) > 0))
	})
}

func short(d time.Duration) string { return d.Round(time.Millisecond).String() }

// tries is how a probe went.
type tries struct {
	count   int
	took    time.Duration
	last    error // the last answer; nil: it passed
	outcome string
}

// ask asks until p is satisfied, or will not be, or ctx ends.
func ask(ctx context.Context, p *sandbox.Probe, once func(context.Context) error) (t tries) {
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, p.Limit())
	defer cancel()
	t.last = errors.New("none")
	good, bad := 0, 0
	for more := pause(bounded, p.InitialDelay); more; {
		next := time.Now().Add(p.Period)
		try, end := context.WithTimeout(bounded, p.TryTimeout)
		err := once(try)
		end()
		if err != nil && bounded.Err() != nil && t.count > 0 {
			break // it was broken off: the answer before tells more
		}
		t.count++
		if t.last = err; err == nil {
			good, bad = good+1, 0
		} else {
			good, bad = 0, bad+1
		}
		if good >= p.Successes {
			break
		}
		more = bad < p.Failures && pause(bounded, time.Until(next))
	}
	t.took = time.Since(began)
	if good < p.Successes && t.last == nil {
		t.last = fmt.Errorf("good, %d in a row, and it needs %d", good, p.Successes)
	}
	if t.outcome = "no success within " + short(p.Limit()); bounded.Err() == nil {
		t.outcome = fmt.Sprintf("%d failures in a row within %s", bad, short(t.took))
	}
	return t
}

// pause waits, and reports whether ctx has not ended.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// answer asks once.
func (s *instance) answer(ctx context.Context) error {
	p := s.entry.Probe
	at := func(port int) string { return net.JoinHostPort(s.entry.Network.IP, strconv.Itoa(port)) }
	switch {
	case p.HTTP != nil:
		return answerHTTP(ctx, at(p.HTTP.Port), p.HTTP)
	case p.TCPPort != 0:
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at(p.TCPPort))
		if err != nil {
			return plain(ctx, err)
		}
		return conn.Close()
	}
	return s.guest.answer(ctx, p.Exec)
}

// plain words why nobody answered, without the address: the probe names it.
func plain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("no answer in time")
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		err = op.Err
	}
	return errors.New(strings.TrimPrefix(err.Error(), "connect: "))
}

// answerHTTP asks with one GET on a connection of its own.
func answerHTTP(ctx context.Context, address string, h *sandbox.HTTPProbe) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+h.Path, nil)
	if err != nil {
		return err
	}
	r.Host = h.Host
	r.Header.Set("User-Agent", "paddock-probe")
	for _, e := range h.Headers {
		r.Header.Set(e.Name, e.Value)
	}
	client := http.Client{
		// No proxy, no redirect: nobody but the sandbox is asked.
		Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: headerMax},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	answer, err := client.Do(r)
	if err != nil {
		return plain(ctx, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode >= http.StatusOK && answer.StatusCode < http.StatusBadRequest {
		return nil
	}
	if answer.StatusCode < http.StatusOK { // after 101 the body is the connection, and may never end
		return fmt.Errorf("%d", answer.StatusCode)
	}
	body, _ := io.ReadAll(io.LimitReader(answer.Body, answerMax)) // for people: what there is of it
	if text := strings.TrimSpace(string(body)); text != "" {
		return fmt.Errorf("%d %q", answer.StatusCode, text)
	}
	return fmt.Errorf("%d", answer.StatusCode)
}

// answer runs a command that tells by its exit whether all is well. One that is
// late is killed: they would pile up.
func (g *guestClient) answer(ctx context.Context, command []string) error {
	events, err := g.start(ctx, &envdpb.StartRequest{Process: &envdpb.ProcessConfig{Cmd: command[0], Args: command[1:]}, Stdin: proto.Bool(false)}, "")
	if err != nil {
		return err
	}
	p, pid := &program{}, uint32(0)
	for events.Receive() {
		e := events.Msg().GetEvent()
		if e.GetStart() != nil {
			pid = e.GetStart().GetPid()
		}
		p.note(e)
	}
	_ = events.Close() // it has ended, or is ended below
	end := p.exit()
	switch {
	case end == nil:
		if pid > 0 {
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
			defer cancel()
			_ = g.signal(bounded, processOf(pid), 9) // one that ended meanwhile is not there
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no end in time%s", p.said())
		}
		return broken(events.Err())
	case end.GetExited() && end.GetExitCode() == 0:
		return nil
	}
	return fmt.Errorf("%s%s", ending(end), p.said())
}

// program is what is known of one that runs in a sandbox. It is safe for
// concurrent use.
type program struct {
	mu     sync.Mutex
	output []byte // its tail
	end    *envdpb.ProcessEvent_EndEvent
}

// follow listens until the returned function is called; the program runs on.
func (p *program) follow(events *connect.ServerStreamForClient[envdpb.StartResponse], stop context.CancelFunc) func() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for events.Receive() {
			p.note(events.Msg().GetEvent())
		}
	}()
	return func() {
		stop()
		<-ended
		_ = events.Close() // broken off on purpose
	}
}

func (p *program) note(e *envdpb.ProcessEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := e.GetData(); d != nil {
		p.output = append(append(p.output, d.GetStdout()...), d.GetStderr()...)
		p.output = p.output[max(0, len(p.output)-outputTail):]
	}
	if e.GetEnd() != nil {
		p.end = e.GetEnd()
	}
}

func (p *program) exit() *envdpb.ProcessEvent_EndEvent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end
}

// describe tells how the sandbox's own program does.
func (p *program) describe(started bool) string {
	end := p.exit()
	switch {
	case !started:
		return "the template starts no program"
	case end == nil:
		return "its program runs" + p.said()
	}
	return "its program ended, " + ending(end) + p.said()
}

// ending words how a program ended.
func ending(e *envdpb.ProcessEvent_EndEvent) string {
	switch {
	case e.GetError() != "":
		return words(e.GetError())
	case e.GetStatus() != "":
		return words(e.GetStatus())
	}
	return fmt.Sprintf("exit status %d", e.GetExitCode())
}

// said quotes the last output, if there is any.
func (p *program) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if text := strings.TrimSpace(string(p.output)); text != "" {
		return fmt.Sprintf(", its last output: %q", text)
	}
	return ""
}
