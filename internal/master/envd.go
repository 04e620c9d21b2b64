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

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/template"
)

// readFromImage reads a request for a template: JSON, or a form of it and of the
// agent that its sandboxes get in place of the usual one. It returns what of the
// JSON has no meaning here, too.
func (m *Master) readFromImage(r *http.Request) (req cubeapi.FromImageRequest, unknown []string, err error) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // one that cannot be read is read as JSON
	if kind != "multipart/form-data" {
		unknown, err = serve.ReadJSONWarn(r, maxBody, &req)
		if err == nil && req.EnvdSHA256 != "" {
			err = fault.New(fault.InvalidInput, "envd_sha256 is the server's to say: send the program in the part envd of a form")
		}
		return req, unknown, err
	}
	limit := int64(m.cfg.TemplateCenter.MaxEnvdMiB) << 20
	// Once for all: what stands between parts counts, too.
	r.Body = http.MaxBytesReader(nil, r.Body, limit+2*maxBody)
	form, err := r.MultipartReader()
	if err != nil {
		return req, nil, fault.Wrap(fault.InvalidInput, err, "form")
	}
	var program []byte
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
			program, err = readEnvd(part, limit)
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
	if err := template.CheckGuest(program, runtime.GOARCH); err != nil {
		return req, nil, err
	}
	sum := sha256.Sum256(program) // whatever the sender says
	req.Envd, req.EnvdSHA256 = string(program), hex.EncodeToString(sum[:])
	return req, unknown, m.roomForEnvd(len(program))
}

func readEnvd(part *multipart.Part, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(part, limit+1))
	switch {
	case err != nil:
		return nil, fault.Wrap(fault.InvalidInput, err, "envd")
	case int64(len(b)) > limit:
		return nil, fault.New(fault.InvalidInput, "envd: it is over %d MiB, the limit of templatecenter.max_envd_mib", limit>>20)
	}
	return b, nil
}

// envdsHeld is how many programs of the largest size may wait in memory.
const envdsHeld = 4

// roomForEnvd refuses a program when those of jobs that wait fill the memory that
// is given to them.
func (m *Master) roomForEnvd(size int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.credentials {
		size += len(c.envd)
	}
	if limit := m.cfg.TemplateCenter.MaxEnvdMiB << 20; size > envdsHeld*limit {
		return fault.New(fault.TooManyWaiting, "envd: with it, %d bytes would wait for builders in memory, of at most %d", size, envdsHeld*limit)
	}
	return nil
}
