package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"syscall"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/fault"
)

// HeaderCode carries the fault code of a refusal beside the status, which is
// too coarse to tell a missing program from a missing process.
const HeaderCode = "X-Paddock-Code"

// refusal is a failure that both faces show: as an error of the Connect
// protocol, and as JSON of a plain route.
type refusal struct {
	code    connect.Code
	fault   *fault.Code
	message string
}

func (r *refusal) Error() string { return r.message }
func (r *refusal) Unwrap() error { return r.fault }

// refuse returns a failure with its place on the wire (code) and its name (f).
func refuse(code connect.Code, f *fault.Code, format string, args ...any) error {
	return &refusal{code: code, fault: f, message: clean(fmt.Sprintf(format, args...))}
}

func badInput(format string, args ...any) error {
	return refuse(connect.CodeInvalidArgument, fault.InvalidInput, format, args...)
}

// causes says what the kernel's refusals of a file mean, first match first.
var causes = []struct {
	is    error
	code  connect.Code
	fault *fault.Code
	words string
}{
	{syscall.ENOSPC, connect.CodeResourceExhausted, fault.SandboxDiskFull, "no space is left on the disk"},
	{syscall.EDQUOT, connect.CodeResourceExhausted, fault.SandboxDiskFull, "the disk quota is used up"},
	{syscall.ENOENT, connect.CodeNotFound, fault.FileNotFound, "does not exist"},
	{syscall.ENOTDIR, connect.CodeNotFound, fault.FileNotFound, "does not exist: a part of the path is not a directory"},
	{syscall.EISDIR, connect.CodeInvalidArgument, fault.FileIsDirectory, "is a directory"},
	{syscall.ENAMETOOLONG, connect.CodeInvalidArgument, fault.InvalidInput, "is too long a path"},
	{syscall.EINVAL, connect.CodeInvalidArgument, fault.InvalidInput, "is not a valid path"},
	{syscall.ELOOP, connect.CodeInvalidArgument, fault.InvalidInput, "is a loop of symbolic links"},
	{syscall.EACCES, connect.CodePermissionDenied, fault.InvalidInput, "permission denied"},
	{syscall.EPERM, connect.CodePermissionDenied, fault.InvalidInput, "operation not permitted"},
	{syscall.EROFS, connect.CodePermissionDenied, fault.InvalidInput, "the file system is read-only"},
	{syscall.ETXTBSY, connect.CodeFailedPrecondition, fault.StateConflict, "is a program that runs now"},
	{syscall.EBUSY, connect.CodeFailedPrecondition, fault.StateConflict, "is in use"},
	{syscall.ENOTEMPTY, connect.CodeFailedPrecondition, fault.StateConflict, "is a directory that is not empty"},
	{syscall.EEXIST, connect.CodeAlreadyExists, fault.Exists, "exists already"},
	{syscall.EMFILE, connect.CodeResourceExhausted, fault.RuntimeFailed, "too many files are open"},
	{syscall.ENFILE, connect.CodeResourceExhausted, fault.RuntimeFailed, "too many files are open"},
	{syscall.ENOMEM, connect.CodeResourceExhausted, fault.RuntimeFailed, "the sandbox is out of memory"},
}

// ofFile says what err, met at path, means. A refusal stays as it is.
func ofFile(path string, err error) error {
	if r := (*refusal)(nil); err == nil || errors.As(err, &r) {
		return err
	}
	for _, c := range causes {
		if errors.Is(err, c.is) {
			return refuse(c.code, c.fault, "path '%s': %s", path, c.words)
		}
	}
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		err = p.Err
	}
	return refuse(connect.CodeInternal, fault.RuntimeFailed, "path '%s': %s", path, err.Error())
}

// rpcError is err as the Connect protocol shows it.
func rpcError(err error) error {
	var r *refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &r):
		e := connect.NewError(r.code, err)
		e.Meta().Set(HeaderCode, r.fault.Name)
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, err)
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, err)
	}
	return err
}

// statuses are those of the plain routes.
var statuses = map[connect.Code]int{
	connect.CodeInvalidArgument:    http.StatusBadRequest,
	connect.CodeFailedPrecondition: http.StatusConflict,
	connect.CodeNotFound:           http.StatusNotFound,
	connect.CodePermissionDenied:   http.StatusForbidden,
	connect.CodeUnauthenticated:    http.StatusUnauthorized,
	connect.CodeAlreadyExists:      http.StatusConflict,
	connect.CodeResourceExhausted:  http.StatusServiceUnavailable,
	connect.CodeUnimplemented:      http.StatusUnsupportedMediaType,
}

// httpError answers a plain route with err.
func httpError(w http.ResponseWriter, err error) {
	status, name := http.StatusInternalServerError, fault.RuntimeFailed.Name
	if r := (*refusal)(nil); errors.As(err, &r) {
		name = r.fault.Name
		if s, ok := statuses[r.code]; ok {
			status = s
		}
		if r.fault == fault.SandboxDiskFull {
			status = http.StatusInsufficientStorage
		}
	}
	w.Header().Set(HeaderCode, name)
	writeFailure(w, status, err.Error())
}

func writeFailure(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{status, message})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the status is sent: nobody is left to tell
}

// translate gives every refusal of an RPC its form on the wire.
type translate struct{}

func (translate) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		answer, err := next(ctx, r)
		return answer, rpcError(err)
	}
}

func (translate) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (translate) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, c connect.StreamingHandlerConn) error {
		return rpcError(next(ctx, c))
	}
}
