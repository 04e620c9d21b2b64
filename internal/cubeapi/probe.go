package cubeapi

// Probe is how a sandbox shows that its own program serves. A create returns
// once it has, and a template is ready on a host once a trial sandbox has there.
// What is absent takes its default.
type Probe struct {
	Handler             ProbeHandler `json:"probe_handler"`
	InitialDelayMS      int64        `json:"initial_delay_ms,omitempty"`
	InitialDelaySeconds int64        `json:"initial_delay_seconds,omitempty"` // added to the milliseconds
	TimeoutMS           int64        `json:"timeout_ms,omitempty"`            // of the whole; default 30000
	TimeoutSeconds      int64        `json:"timeout_seconds,omitempty"`       // added to the milliseconds
	PeriodMS            int64        `json:"period_ms,omitempty"`             // default 500
	ProbeTimeoutMS      int64        `json:"probe_timeout_ms,omitempty"`      // of one try; default 5000
	SuccessThreshold    int          `json:"success_threshold,omitempty"`     // in a row; default 1
	FailureThreshold    int          `json:"failure_threshold,omitempty"`     // in a row; default as many as fit in the timeout
}

// ProbeHandler is what is asked. One is set.
type ProbeHandler struct {
	HTTPGet   *HTTPGetProbe   `json:"http_get,omitempty"`
	TCPSocket *TCPSocketProbe `json:"tcp_socket,omitempty"`
	Exec      *ExecProbe      `json:"exec,omitempty"`
}

// HTTPGetProbe succeeds with status 200 to 399; no redirect is followed. Host is
// the header: who is asked is always the sandbox.
type HTTPGetProbe struct {
	Port    int         `json:"port"`
	Path    string      `json:"path,omitempty"` // default /
	Host    string      `json:"host,omitempty"`
	Headers []NameValue `json:"http_headers,omitempty"`
}

// NameValue is one header.
type NameValue struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// TCPSocketProbe succeeds when a connection opens.
type TCPSocketProbe struct {
	Port int `json:"port"`
}

// ExecProbe succeeds when the command, which runs in the sandbox, ends with 0.
type ExecProbe struct {
	Command []string `json:"command"`
}
