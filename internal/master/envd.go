package master

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/template"
)

// readFromImage reads a request for a template: JSON, or a form of it and of the
// agent that its sandboxes get in place of the usual one. It returns what of the
// JSON has no meaning here, too.
func (m *Master) readFromImage(w http.ResponseWriter, r *http.Request) (req cubeapi.FromImageRequest, unknown []string, err error) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // one that cannot be read is read as JSON
	if kind != "multipart/form-data" {
		unknown, err = serve.ReadJSONWarn(r, maxBody, &req)
		if err == nil && req.EnvdSHA256 != "" {
			err = fault.New(fault.InvalidInput, "envd_sha256 is the server's to say: send the program in the part envd of a form")
		}
		return req, unknown, err
	}
	done, err := m.beginAgent(w, r)
	if err != nil {
		return req, nil, err
	}
	defer func() { err = errors.Join(err, done(err == nil)) }()
	limit := int64(m.cfg.TemplateCenter.MaxEnvdMiB) << 20
	// Once for all: what stands between parts counts, too.
	r.Body = http.MaxBytesReader(nil, r.Body, limit+2*maxBody)
	form, err := r.MultipartReader()
	if err != nil {
		return req, nil, fault.Wrap(fault.InvalidInput, err, "form")
	}
	var program, sum string
	seen := map[string]bool{}
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return req, nil, fault.Wrap(fault.InvalidInput, err, "form")
		}
		name := part.FormName()
		if seen[name] {
			return req, nil, fault.New(fault.InvalidInput, "form: part %.100q is there twice", name)
		}
		seen[name] = true
		switch name {
		case "request":
			unknown, err = serve.ReadJSONWarn(&http.Request{Body: part}, maxBody, &req)
		case "envd":
			program, sum, err = readEnvd(part, limit)
		default:
			err = fault.New(fault.InvalidInput, "form: part %.100q: it has request, as JSON, and envd", name)
		}
		if err != nil {
			return req, nil, err
		}
	}
	if !seen["request"] || !seen["envd"] {
		return req, nil, fault.New(fault.InvalidInput, "form: it must have the parts request, as JSON, and envd")
	}
	if err := template.CheckGuest(strings.NewReader(program), runtime.GOARCH); err != nil {
		return req, nil, err
	}
	req.Envd, req.EnvdSHA256 = program, sum // whatever the sender says
	return req, unknown, nil
}

// beginAgent waits for a form's turn to be read, and bounds the reading: an agent is
// large, and its sender may be slow. done must be called when it is read, or was
// refused: what is left of it then must come within the time, too.
func (m *Master) beginAgent(w http.ResponseWriter, r *http.Request) (done func(whole bool) error, err error) {
	c := http.NewResponseController(w)
	if err := c.SetReadDeadline(time.Now().Add(m.pace.agentWait + m.pace.agentRead)); err != nil {
		return nil, fault.Wrap(fault.Bug, err, "no time limit for reading a form")
	}
	late := time.NewTimer(m.pace.agentWait)
	defer late.Stop()
	select {
	case m.agents <- struct{}{}:
	case <-late.C:
		return nil, fault.New(fault.TooManyWaiting, "envd: %d others are sent just now, as many as are read at once", template.GuestsHeld)
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if err := c.SetReadDeadline(time.Now().Add(m.pace.agentRead)); err != nil {
		<-m.agents
		return nil, fault.Wrap(fault.Bug, err, "no time limit for reading a form")
	}
	return func(whole bool) error {
		<-m.agents
		if !whole {
			return nil
		}
		return c.SetReadDeadline(time.Time{})
	}, nil
}

func readEnvd(part *multipart.Part, limit int64) (program, sum string, err error) {
	var b strings.Builder // it gives its bytes away without a copy
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(&b, h), io.LimitReader(part, limit+1))
	switch {
	case err != nil:
		return "", "", fault.Wrap(fault.InvalidInput, err, "envd")
	case n > limit:
		return "", "", fault.New(fault.InvalidInput, "envd: it is over %d MiB, the limit of templatecenter.max_envd_mib", limit>>20)
	}
	return b.String(), hex.EncodeToString(h.Sum(nil)), nil
}
