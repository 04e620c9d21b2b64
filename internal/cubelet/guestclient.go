package cubelet

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/envdpb"
	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	guestPort   = 49983
	headerCode  = "X-Paddock-Code" // set by the guest beside a refusal
	headerToken = "X-Access-Token"
	dialTime    = 2 * time.Second

	// A guest may be a user's own: what it says is bounded.
	messageMax = 4 << 20 // bytes of one message; the largest are chunks of output, and the way on takes no more
	wordsMax   = 1 << 10 // bytes of what it says for people

	firstPause, longestPause       = time.Millisecond, 20 * time.Millisecond
	firstPatience, longestPatience = 100 * time.Millisecond, 2 * time.Second
)

// guestClient speaks to the guest of one sandbox.
type guestClient struct {
	base  string
	token string // what the guest asks of callers; empty: nothing
	http  *http.Client
	rpc   envdpb.ProcessClient
}

func newGuestClient(ip, token string) *guestClient {
	return clientAt("http://"+net.JoinHostPort(ip, strconv.Itoa(guestPort)), token)
}

func clientAt(base, token string) *guestClient {
	client := &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: dialTime}).DialContext,
			MaxIdleConnsPerHost: 4,
			IdleConnTimeout:     30 * time.Second,
			DisableCompression:  true,

			MaxResponseHeaderBytes: headerMax,
		},
		// No redirect: a guest must not have its host ask others.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return (&guestClient{base: base, http: client}).showing(token)
}

// showing returns a client over the same connections that shows a token.
func (g *guestClient) showing(token string) *guestClient {
	return &guestClient{
		base: g.base, token: token, http: g.http,
		rpc: envdpb.NewProcessClient(g.http, g.base, connect.WithReadMaxBytes(messageMax), connect.WithInterceptors(shows(token))),
	}
}

// shows puts the token on every call.
type shows string

func (t shows) put(h http.Header) {
	if t != "" {
		h.Set(headerToken, string(t))
	}
}

func (t shows) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		t.put(r.Header())
		return next(ctx, r)
	}
}

func (t shows) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, s connect.Spec) connect.StreamingClientConn {
		c := next(ctx, s)
		t.put(c.RequestHeader())
		return c
	}
}

func (t shows) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func (g *guestClient) close() { g.http.CloseIdleConnections() }

// ready waits until the guest answers, asking often: its start takes a
// fraction of a second and every wait adds to it. The first questions wait
// only shortly, since one that was lost is repeated by the kernel much later.
func (g *guestClient) ready(ctx context.Context) error {
	pause, patience := firstPause, firstPatience
	for {
		err := g.health(ctx, patience)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: the last answer was: %w", context.Cause(ctx), err)
		case <-time.After(pause):
			pause, patience = min(longestPause, pause*3/2), min(longestPatience, patience*2)
		}
	}
}

func (g *guestClient) health(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, g.base+"/health", nil)
	if err != nil {
		return err
	}
	answer, err := g.http.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusNoContent {
		return fmt.Errorf("GET /health: status %d", answer.StatusCode)
	}
	return nil
}

// settings are what a guest is told once, at the sandbox's start.
type settings struct {
	EnvVars        map[string]string `json:"envVars"`
	AccessToken    string            `json:"accessToken,omitempty"`
	DefaultUser    string            `json:"defaultUser,omitempty"`
	DefaultWorkdir string            `json:"defaultWorkdir,omitempty"`

	// For one that was started before it had a name, or for another.
	NewLife  string `json:"newLife,omitempty"`
	Hostname string `json:"hostname,omitempty"`
	Resolver string `json:"resolvConf,omitempty"`
}

func (g *guestClient) init(ctx context.Context, s settings) error {
	body, err := json.Marshal(s)
	if err != nil {
		return err
	}
	answer, err := g.do(ctx, http.MethodPost, "/init", bytes.NewReader(body), "application/json")
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// startTag is how a template's own process is found among the others.
const startTag = "start"

// launch starts the template's own process and returns what it says, until ctx
// ends. It runs on when nobody listens: the guest ends a process at the call's
// deadline, so the call has none of its own and ends with ctx.
func (g *guestClient) launch(ctx context.Context, command []string) (*connect.ServerStreamForClient[envdpb.StartResponse], error) {
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, stop)
	tag := startTag
	events, err := g.start(own, &envdpb.StartRequest{Process: &envdpb.ProcessConfig{Cmd: command[0], Args: command[1:]}, Tag: &tag, Stdin: new(bool)}, "")
	if err == nil && !events.Receive() {
		err = errors.Join(broken(events.Err()), events.Close())
	}
	if err == nil {
		return events, nil
	}
	unhook()
	stop()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, fault.Wrap(fault.Deadline, err, "start of the sandbox's program")
	}
	return nil, err
}

// broken is why a process's events came to no end: the call's failure, or that
// there was none.
func broken(err error) error {
	if err != nil {
		return rpcFault(err)
	}
	return fault.New(fault.GuestUnreachable, "guest: the answer broke off")
}

// do sends a request and turns a refusal into its fault.
func (g *guestClient) do(ctx context.Context, method, path string, body io.Reader, kind string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, g.base+path, body)
	if err != nil {
		return nil, fault.Wrap(fault.InvalidInput, err, "request to the guest")
	}
	shows(g.token).put(r.Header)
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	answer, err := g.http.Do(r)
	if err != nil {
		return nil, fault.Wrap(fault.GuestUnreachable, err, "guest")
	}
	if answer.StatusCode < http.StatusMultipleChoices {
		return answer, nil
	}
	defer answer.Body.Close()
	var e struct {
		Message string `json:"message"`
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<16)).Decode(&e); err != nil {
		e.Message = answer.Status
	}
	return nil, guestFault(answer.Header.Get(headerCode), answer.StatusCode, e.Message)
}

// words is what a guest says for people, in a size and form to hand on.
func words(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), wordsMax)], "?")
}

// guestFault returns the fault that the guest named, or the class of its
// status.
func guestFault(code string, status int, message string) error {
	message = words(message)
	switch {
	case code != "":
		return fault.FromName(words(code), status, message)
	case status == http.StatusUnauthorized || status == http.StatusBadRequest:
		return fault.New(fault.InvalidInput, "%s", message)
	}
	return fault.New(fault.RuntimeFailed, "%s", message)
}

// Where the guest takes and gives files, and directories as tar archives.
const (
	guestFiles   = "/files"
	guestArchive = "/archive"
)

func fileQuery(place, path, user string) string {
	q := url.Values{"path": {path}}
	if user != "" {
		q.Set("username", user)
	}
	return place + "?" + q.Encode()
}

// read returns a file's, or an archive's, bytes and their number, -1 when unknown.
func (g *guestClient) read(ctx context.Context, place, path, user string) (io.ReadCloser, int64, error) {
	answer, err := g.do(ctx, http.MethodGet, fileQuery(place, path, user), nil, "")
	if err != nil {
		return nil, 0, err
	}
	return answer.Body, answer.ContentLength, nil
}

// write stores data as a file, or unpacks it.
func (g *guestClient) write(ctx context.Context, place, path, user string, data io.Reader) error {
	method := http.MethodPost
	if place == guestArchive {
		method = http.MethodPut
	}
	answer, err := g.do(ctx, method, fileQuery(place, path, user), data, "application/octet-stream")
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// start starts a process and returns its events.
func (g *guestClient) start(ctx context.Context, m *envdpb.StartRequest, user string) (*connect.ServerStreamForClient[envdpb.StartResponse], error) {
	r := connect.NewRequest(m)
	if user != "" {
		r.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":")))
	}
	stream, err := g.rpc.Start(ctx, r)
	return stream, rpcFault(err)
}

// rpcFault turns a failure of the guest's API into its fault.
func rpcFault(err error) error {
	if err == nil {
		return nil
	}
	var e *connect.Error
	if !errors.As(err, &e) {
		return fault.Wrap(fault.GuestUnreachable, err, "guest")
	}
	err = connect.NewError(e.Code(), errors.New(words(e.Message())))
	if code := e.Meta().Get(headerCode); code != "" {
		return guestFault(code, 0, e.Message())
	}
	switch e.Code() {
	case connect.CodeUnauthenticated, connect.CodeInvalidArgument, connect.CodePermissionDenied:
		return fault.New(fault.InvalidInput, "%s", words(e.Message()))
	case connect.CodeCanceled:
		return fault.Wrap(fault.CallCancelled, err, "guest")
	case connect.CodeDeadlineExceeded:
		return fault.Wrap(fault.Deadline, err, "guest")
	case connect.CodeUnavailable, connect.CodeUnknown:
		return fault.Wrap(fault.GuestUnreachable, err, "guest")
	}
	return fault.Wrap(fault.RuntimeFailed, err, "guest")
}

// send gives a process input: typed at its terminal, or at its standard input.
func (g *guestClient) send(ctx context.Context, p *envdpb.ProcessSelector, b []byte, typed bool) error {
	input := &envdpb.ProcessInput{Input: &envdpb.ProcessInput_Stdin{Stdin: b}}
	if typed {
		input.Input = &envdpb.ProcessInput_Pty{Pty: b}
	}
	_, err := g.rpc.SendInput(ctx, connect.NewRequest(&envdpb.SendInputRequest{Process: p, Input: input}))
	return err
}

func (g *guestClient) resize(ctx context.Context, p *envdpb.ProcessSelector, t *envdpb.PTY) error {
	_, err := g.rpc.Update(ctx, connect.NewRequest(&envdpb.UpdateRequest{Process: p, Pty: t}))
	return err
}

// detach starts a process that goes on when the call ends, and returns its
// number.
func (g *guestClient) detach(ctx context.Context, m *envdpb.StartRequest, user string) (uint32, error) {
	// The guest ends a process at its call's deadline: this one has none, and is
	// over when the process is known.
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	unhook := context.AfterFunc(ctx, stop)
	defer unhook()
	events, err := g.start(own, m, user)
	if err != nil {
		return 0, err
	}
	defer events.Close()
	for events.Receive() {
		if pid := events.Msg().GetEvent().GetStart().GetPid(); pid > 0 {
			return pid, nil
		}
	}
	return 0, broken(events.Err())
}

func (g *guestClient) closeStdin(ctx context.Context, p *envdpb.ProcessSelector) error {
	_, err := g.rpc.CloseStdin(ctx, connect.NewRequest(&envdpb.CloseStdinRequest{Process: p}))
	return err
}

func (g *guestClient) signal(ctx context.Context, p *envdpb.ProcessSelector, number int32) error {
	_, err := g.rpc.SendSignal(ctx, connect.NewRequest(&envdpb.SendSignalRequest{Process: p, Signal: envdpb.Signal(number)}))
	return err
}
