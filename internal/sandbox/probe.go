package sandbox

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Probe is how a sandbox shows that its own program serves: one question that is
// asked again and again until it is answered well, or too often not.
type Probe struct {
	HTTP    *HTTPProbe `json:"http,omitempty"`
	TCPPort int        `json:"tcp_port,omitempty"`
	Exec    []string   `json:"exec,omitempty"`

	InitialDelay time.Duration `json:"initial_delay_ns,omitempty"`
	Timeout      time.Duration `json:"timeout_ns"` // of the whole, after the delay
	Period       time.Duration `json:"period_ns"`
	TryTimeout   time.Duration `json:"try_timeout_ns"`
	Successes    int           `json:"successes"` // in a row
	Failures     int           `json:"failures"`  // in a row
}

// HTTPProbe asks the program with a GET. Statuses 200 to 399 are good answers.
type HTTPProbe struct {
	Port    int      `json:"port"`
	Path    string   `json:"path"`
	Host    string   `json:"host,omitempty"` // the header; who is asked is always the sandbox
	Headers []Header `json:"headers,omitempty"`
}

// Header is one header of a request.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// MaxProbeTime is how long any probe may take.
const MaxProbeTime = 5 * time.Minute

// The other bounds of a probe, and what is meant where it says nothing.
const (
	minProbePeriod = 50 * time.Millisecond
	maxProbeCount  = 10_000
	maxProbeWords  = 64
	maxProbeText   = 4096
	maxHeaders     = 16
	maxProbePath   = 1024

	probeTimeout = 30 * time.Second
	probePeriod  = 500 * time.Millisecond
	probeTry     = 5 * time.Second
)

// Defaults fills in what p does not say. The threshold of failures is then what
// fits in the timeout.
func (p *Probe) Defaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&p.Timeout, probeTimeout)
	set(&p.Period, min(probePeriod, p.Timeout))
	set(&p.TryTimeout, min(probeTry, p.Timeout))
	if p.Successes == 0 {
		p.Successes = 1
	}
	if p.Failures == 0 && p.Period > 0 {
		p.Failures = int(min(maxProbeCount, (p.Timeout+p.Period-1)/p.Period))
	}
	if p.HTTP != nil && p.HTTP.Path == "" {
		p.HTTP.Path = "/"
	}
}

// Check refuses a probe that breaks a rule.
func (p *Probe) Check() error {
	kinds := 0
	for _, has := range []bool{p.HTTP != nil, p.TCPPort != 0, len(p.Exec) > 0} {
		if has {
			kinds++
		}
	}
	if kinds != 1 {
		return refuse("it has %d of http_get, tcp_socket and exec, and must have one", kinds)
	}
	switch {
	case p.InitialDelay < 0 || p.Timeout <= 0 || p.InitialDelay > MaxProbeTime || p.Timeout > MaxProbeTime || p.InitialDelay+p.Timeout > MaxProbeTime:
		return refuse("initial_delay_ms and timeout_ms must be over 0 and together at most %d", MaxProbeTime.Milliseconds())
	case p.Period < minProbePeriod || p.Period > MaxProbeTime:
		return refuse("period_ms must be %d to %d", minProbePeriod.Milliseconds(), MaxProbeTime.Milliseconds())
	case p.TryTimeout < minProbePeriod || p.TryTimeout > MaxProbeTime:
		return refuse("probe_timeout_ms must be %d to %d", minProbePeriod.Milliseconds(), MaxProbeTime.Milliseconds())
	case p.Successes < 1 || p.Successes > maxProbeCount || p.Failures < 1 || p.Failures > maxProbeCount:
		return refuse("success_threshold and failure_threshold must be 1 to %d", maxProbeCount)
	}
	switch {
	case p.HTTP != nil:
		return p.HTTP.check()
	case p.TCPPort != 0:
		return checkPort(p.TCPPort)
	}
	total := 0
	for _, w := range p.Exec {
		total += len(w)
		if strings.ContainsRune(w, 0) {
			return refuse("a word of its command holds a zero byte")
		}
	}
	if p.Exec[0] == "" || len(p.Exec) > maxProbeWords || total > maxProbeText {
		return refuse("its command must have 1 to %d words of at most %d bytes together", maxProbeWords, maxProbeText)
	}
	return nil
}

func (h *HTTPProbe) check() error {
	if err := checkPort(h.Port); err != nil {
		return err
	}
	plain := func(s string) bool {
		return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
	}
	if _, err := url.ParseRequestURI(h.Path); err != nil || !strings.HasPrefix(h.Path, "/") || len(h.Path) > maxProbePath || !plain(h.Path) || strings.Contains(h.Path, "#") {
		return refuse("path %.100q: must begin with / and have at most %d printable characters of ASCII", h.Path, maxProbePath)
	}
	if len(h.Host) > 255 || !plain(h.Host) || strings.ContainsAny(h.Host, "/\\@?#") {
		return refuse("host %.100q can be no Host header", h.Host)
	}
	if len(h.Headers) > maxHeaders {
		return refuse("%d headers, at most %d", len(h.Headers), maxHeaders)
	}
	for _, e := range h.Headers {
		switch {
		case e.Name == "" || len(e.Name) > 128 || strings.ContainsFunc(e.Name, func(r rune) bool { return !inToken(r) }):
			return refuse("header %.100q", e.Name)
		case len(e.Value) > maxProbeText || strings.ContainsFunc(e.Value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			return refuse("the value of header %s is too long or holds a control character", e.Name)
		case ownHeaders[strings.ToLower(e.Name)]:
			return refuse("header %s is the request's own", e.Name)
		}
	}
	return nil
}

// ownHeaders say how a request is sent, which no probe may change.
var ownHeaders = map[string]bool{"host": true, "connection": true, "content-length": true, "transfer-encoding": true, "upgrade": true, "te": true, "trailer": true, "keep-alive": true, "proxy-connection": true}

// inToken reports whether a header's name may have r.
func inToken(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

func checkPort(port int) error {
	if port < 1 || port > 65535 {
		return refuse("port %d: must be 1 to 65535", port)
	}
	return nil
}

func refuse(format string, args ...any) error {
	return fault.New(fault.InvalidInput, "probe: %s", fmt.Sprintf(format, args...))
}

// Milliseconds returns n of them, or what no probe may take.
func Milliseconds(n int64) time.Duration {
	if limit := 2 * MaxProbeTime.Milliseconds(); n > limit || n < -limit {
		return 2 * MaxProbeTime
	}
	return time.Duration(n) * time.Millisecond
}

// Limit is how long p may take at most.
func (p *Probe) Limit() time.Duration {
	if p == nil {
		return 0
	}
	return p.InitialDelay + p.Timeout
}

// String names the question.
func (p *Probe) String() string {
	switch {
	case p.HTTP != nil:
		return fmt.Sprintf("http GET :%d%s", p.HTTP.Port, p.HTTP.Path)
	case p.TCPPort != 0:
		return fmt.Sprintf("tcp :%d", p.TCPPort)
	}
	return "exec " + fault.Clip(strings.Join(p.Exec, " "), 200)
}
