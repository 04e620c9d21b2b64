package e2b

import (
	"encoding/base64"
	"net/http"
	"testing"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/envdpb"
)

// run runs a program as root, which must end well.
func (b box) run(t *testing.T, command ...string) {
	t.Helper()
	r := connect.NewRequest(&envdpb.StartRequest{Process: &envdpb.ProcessConfig{Cmd: command[0], Args: command[1:]}})
	r.Header().Set("X-Access-Token", b.token)
	r.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("root:")))
	events, err := envdpb.NewProcessClient(http.DefaultClient, b.url).Start(t.Context(), r)
	check(t, err)
	defer events.Close()
	said, ended := "", false
	for events.Receive() {
		e := events.Msg().GetEvent()
		said += string(e.GetData().GetStdout()) + string(e.GetData().GetStderr())
		if end := e.GetEnd(); end != nil {
			ended = end.GetExited() && end.GetExitCode() == 0
		}
	}
	if events.Err() != nil || !ended {
		t.Fatalf("%v: %v, %q", command, events.Err(), said)
	}
}
