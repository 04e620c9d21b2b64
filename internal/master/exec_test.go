package master_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
)

func TestExec(t *testing.T) {
	r, h, id := one(t, sqlite(t))
	run := func(q cubeapi.ExecRequest) (cubeapi.ExecExit, string, string, error) {
		if q.SandboxID == "" {
			q.SandboxID = id
		}
		var out, errs bytes.Buffer
		exit, err := r.api.Exec(t.Context(), q, &out, &errs)
		return exit, out.String(), errs.String(), err
	}
	if exit, out, _, err := run(cubeapi.ExecRequest{Command: []string{"echo", "a", "b"}}); err != nil || exit.Code != 0 || out != "a b\n" {
		t.Errorf("echo: %+v %q %v", exit, out, err)
	}
	if exit, _, errs, err := run(cubeapi.ExecRequest{Command: []string{"fail"}}); err != nil || exit.Code != 3 || errs != "it failed\n" {
		t.Errorf("fail: %+v %q %v", exit, errs, err)
	}
	input := strings.Repeat("0123456789", 50_000)
	if exit, out, _, err := run(cubeapi.ExecRequest{Command: []string{"cat"}, Stdin: []byte(input)}); err != nil || exit.Code != 0 || out != input {
		t.Errorf("cat: %+v, %d of %d bytes, %v", exit, len(out), len(input), err)
	}
	_, _, _, err := run(cubeapi.ExecRequest{Command: []string{"nothing"}})
	refused(t, err, fault.CommandNotFound)
	_, _, _, err = run(cubeapi.ExecRequest{})
	refused(t, err, fault.InvalidInput)
	_, _, _, err = run(cubeapi.ExecRequest{Command: []string{"echo"}, TimeoutMS: -1})
	refused(t, err, fault.InvalidInput)
	_, _, _, err = run(cubeapi.ExecRequest{Command: []string{"echo"}, SandboxID: nobody})
	refused(t, err, fault.SandboxNotFound)
	_, _, _, err = run(cubeapi.ExecRequest{Command: []string{"break"}})
	refused(t, err, fault.GuestUnreachable)
	_, _, _, err = run(cubeapi.ExecRequest{Command: []string{"sleep"}, TimeoutMS: 200})
	refused(t, err, fault.Deadline)
	eventually(t, "the process is ended", func() bool { return h.called("exec_ended") == 1 })

	ctx, goAway := context.WithCancel(t.Context())
	started := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		close(started)
		_, err := r.api.Exec(ctx, cubeapi.ExecRequest{SandboxID: id, Command: []string{"sleep"}}, io.Discard, io.Discard)
		ended <- err
	}()
	wait(t, "the command is sent", started)
	goAway()
	if err := <-ended; err == nil {
		t.Error("a caller that went away got an exit")
	}

	h.away()
	_, _, _, err = run(cubeapi.ExecRequest{Command: []string{"echo"}})
	refused(t, err, fault.HostUnreachable)
	h.back()
	eventually(t, "the host is back", func() bool {
		_, _, _, err := run(cubeapi.ExecRequest{Command: []string{"echo"}})
		return err == nil
	})
	must(t, r.api.DeleteSandbox(t.Context(), id))
	_, _, _, err = run(cubeapi.ExecRequest{Command: []string{"echo"}})
	refused(t, err, fault.SandboxNotReady)
}

// What is written comes back before more is written: input and output flow at
// once, for longer than any buffer.
func TestExecIsAConversation(t *testing.T) {
	r, _, id := one(t, sqlite(t))
	in, give := io.Pipe()
	hear, out := io.Pipe()
	pid, ended := uint32(0), make(chan error, 1)
	go func() {
		exit, err := r.api.ExecWith(t.Context(), cubeapi.ExecRequest{SandboxID: id, Command: []string{"cat"}}, cubeapi.ExecStreams{Stdin: in, Stdout: out, Stderr: io.Discard, Started: func(n uint32) { pid = n }})
		if err == nil && exit != (cubeapi.ExecExit{}) {
			err = fmt.Errorf("exit %+v", exit)
		}
		ended <- err
	}()
	for _, word := range []string{"one", "two", strings.Repeat("x", 300_000), "end"} {
		go func() { _, _ = io.WriteString(give, word) }() // what it comes to is read below
		back := make([]byte, len(word))
		if _, err := io.ReadFull(hear, back); err != nil || string(back) != word {
			t.Fatalf("%.20q came back as %.20q, %v", word, back, err)
		}
	}
	must(t, give.Close())
	must(t, <-ended)
	if pid == 0 {
		t.Error("the process was not named")
	}
}

// A command that ends does not wait for the end of its input, nor does a
// refusal; and input that breaks off ends the call of the host.
func TestInputThatStaysOpen(t *testing.T) {
	r, h, id := one(t, sqlite(t))
	with := func(in io.Reader, q cubeapi.ExecRequest, api *cubeapi.Client) (cubeapi.ExecExit, error) {
		return api.ExecWith(t.Context(), q, cubeapi.ExecStreams{Stdin: in, Stdout: io.Discard, Stderr: io.Discard})
	}
	open, hold := io.Pipe()
	defer hold.Close()
	if exit, err := with(open, cubeapi.ExecRequest{SandboxID: id, Command: []string{"fail"}}, r.api); err != nil || exit.Code != 3 {
		t.Errorf("a command that ends: %+v, %v", exit, err)
	}
	_, err := with(open, cubeapi.ExecRequest{SandboxID: nobody, Command: []string{"cat"}}, r.api)
	refused(t, err, fault.SandboxNotFound)
	_, err = with(open, cubeapi.ExecRequest{SandboxID: id, Command: []string{"nothing"}}, r.api)
	refused(t, err, fault.CommandNotFound)
	_, err = with(open, cubeapi.ExecRequest{SandboxID: id}, r.api)
	refused(t, err, fault.InvalidInput)
	_, err = with(open, cubeapi.ExecRequest{SandboxID: id, Command: []string{"cat"}, Stdin: []byte("twice")}, r.api)
	refused(t, err, fault.InvalidInput)
	_, err = with(open, cubeapi.ExecRequest{SandboxID: id, Command: []string{"cat"}}, cubeapi.NewClient(r.front.URL, "e2b_wrong"))
	refused(t, err, fault.Unauthenticated)
	_, err = with(strings.NewReader(strings.Repeat("x", cubeapi.MaxExecLine)), cubeapi.ExecRequest{SandboxID: id, Command: []string{strings.Repeat("x", cubeapi.MaxExecLine)}}, r.api)
	refused(t, err, fault.InvalidInput)

	before := h.called("exec_ended")
	broken, cut := io.Pipe()
	breakOff := func(uint32) { _ = cut.CloseWithError(io.ErrUnexpectedEOF) } // never fails
	_, err = r.api.ExecWith(t.Context(), cubeapi.ExecRequest{SandboxID: id, Command: []string{"sleep"}}, cubeapi.ExecStreams{Stdin: broken, Stdout: io.Discard, Stderr: io.Discard, Started: breakOff})
	if err == nil {
		t.Error("input that broke off came to an exit")
	}
	eventually(t, "the call of the host ended", func() bool { return h.called("exec_ended") == before+1 })
}

func TestABodyWithoutALineIsRefused(t *testing.T) {
	r := newRig(t, sqlite(t))
	r.start()
	for _, body := range []string{"", "\n", "no json\n", `{"command":["cat"]}`} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.front.URL+cubeapi.PathSandboxExec, strings.NewReader(body))
		must(t, err)
		q.Header.Set("Content-Type", cubeapi.ContentExecInput)
		q.Header.Set(cubeapi.HeaderAPIKey, apiKey)
		answer, err := http.DefaultClient.Do(q)
		must(t, err)
		must(t, answer.Body.Close())
		if answer.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: HTTP %d", body, answer.StatusCode)
		}
	}
}

func TestSignal(t *testing.T) {
	r, h, id := one(t, sqlite(t))
	ended := make(chan cubeapi.ExecExit, 1)
	started := make(chan uint32, 1)
	go func() {
		exit, err := r.api.ExecWith(t.Context(), cubeapi.ExecRequest{SandboxID: id, Command: []string{"sleep"}}, cubeapi.ExecStreams{Stdout: io.Discard, Stderr: io.Discard, Started: func(pid uint32) { started <- pid }})
		if err != nil {
			t.Error(err)
		}
		ended <- exit
	}()
	pid := <-started
	must(t, r.api.Signal(t.Context(), id, pid, 2))
	if exit := <-ended; exit.Signal != "interrupt" || exit.SignalNumber != 2 {
		t.Errorf("ended %+v", exit)
	}
	refused(t, r.api.Signal(t.Context(), id, pid, 2), fault.NoSuchThing)
	refused(t, r.api.Signal(t.Context(), id, pid, 0), fault.InvalidInput)
	refused(t, r.api.Signal(t.Context(), id, 0, 2), fault.InvalidInput)
	refused(t, r.api.Signal(t.Context(), nobody, pid, 2), fault.SandboxNotFound)
	h.away()
	refused(t, r.api.Signal(t.Context(), id, pid, 2), fault.HostUnreachable)
	h.back()
}
