package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/logs"
)

// refusal is the body of every failure: the envelope of the template and
// sandbox faces with the detail beside it (docs/adr/0004).
type refusal struct {
	RequestID string `json:"requestID"`
	Ret       struct {
		Code    int    `json:"ret_code"`
		Message string `json:"ret_msg"`
	} `json:"ret"`
	Error fault.Detail `json:"error"`
}

// waiter is a failure that knows when trying again may help.
type waiter interface{ After() time.Duration }

// WriteError answers with err's HTTP status and its detail.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	writeError(w, r, err, fault.Of(err).Class.HTTP)
}

// WriteErrorWith is WriteError for a refusal that says more: the fields of with
// stand beside its own, which win.
func WriteErrorWith(w http.ResponseWriter, r *http.Request, err error, with any) {
	body, status := refused(w, r, err), fault.Of(err).Class.HTTP
	fields := map[string]json.RawMessage{}
	for _, v := range []any{with, body} {
		b, failed := json.Marshal(v)
		if failed == nil {
			failed = json.Unmarshal(b, &fields)
		}
		if failed != nil {
			WriteJSON(w, status, body) // the refusal itself must not be lost
			return
		}
	}
	WriteJSON(w, status, fields)
}

func writeError(w http.ResponseWriter, r *http.Request, err error, status int) {
	WriteJSON(w, status, refused(w, r, err))
}

// refused notes err, sets what its class wants in the header, and returns the
// body.
func refused(w http.ResponseWriter, r *http.Request, err error) refusal {
	code, detail := fault.Of(err), fault.DetailOf(err)
	note(r.Context(), err)
	body := refusal{RequestID: logs.RequestID(r.Context()), Error: detail}
	body.Ret.Code, body.Ret.Message = code.RetCode(), detail.Message
	if code.Class == fault.Anonymous {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if code.Class.Retry && (code.Class.HTTP == http.StatusTooManyRequests || code.Class.HTTP == http.StatusServiceUnavailable) {
		after, seconds := waiter(nil), 1
		if errors.As(err, &after) {
			seconds = max(1, int(math.Ceil(after.After().Seconds())))
		}
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
	}
	return body
}

// WriteJSON answers with v. An encoding failure can only be our own mistake; a
// broken connection is the client's loss.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the status is sent: nobody is left to tell
}

// ReadJSON reads one JSON value of at most limit bytes into v. What is not
// JSON, or goes on after it, is fault.InvalidInput.
func ReadJSON(r *http.Request, limit int64, v any) error {
	d := json.NewDecoder(http.MaxBytesReader(nil, r.Body, limit))
	if err := d.Decode(v); err != nil {
		var tooLarge *http.MaxBytesError
		switch {
		case errors.As(err, &tooLarge):
			return fault.New(fault.InvalidInput, "request body is over %d bytes", limit)
		case errors.Is(err, io.EOF):
			return fault.New(fault.InvalidInput, "request body is empty: send a JSON object")
		}
		return fault.Wrap(fault.InvalidInput, err, "request body is not the JSON that this path takes")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fault.New(fault.InvalidInput, "request body goes on after its JSON object")
	}
	return nil
}

// ReadOptionalJSON is ReadJSON for a body that may be absent, or null: then v
// stays as it is.
func ReadOptionalJSON(r *http.Request, limit int64, v any) error {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, limit))
	if err != nil {
		return fault.Wrap(fault.InvalidInput, err, "request body")
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return ReadJSON(r, limit, v)
}

// GRPCError returns err as a gRPC status that carries its detail. nil stays
// nil, and so does what is a status already.
func GRPCError(err error) error {
	if err == nil {
		return nil
	}
	if _, done := err.(interface{ GRPCStatus() *status.Status }); done { //nolint:errorlint // a status inside a fault is only its cause
		return err
	}
	d := fault.DetailOf(err)
	details := []protoadapt.MessageV1{&hostpb.ErrorDetail{Code: d.Code, Message: d.Message, Cause: d.Cause, Remedy: d.Remedy, Retryable: d.Retryable}}
	if t := TruthOf(err); t != nil {
		details = append(details, t)
	}
	s, failed := status.New(codes.Code(fault.Of(err).Class.GRPC), d.Message).WithDetails(details...)
	if failed != nil {
		return status.Error(codes.Internal, d.Message)
	}
	return s.Err()
}

// FromGRPC returns the failure that a status stands for, so that errors.Is
// finds its code. A status without detail is the transport's word: the peer
// did not answer (fault.PeerUnavailable), or the context ended. nil, io.EOF and
// what is no status stay as they are.
func FromGRPC(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	var said error
	var truth *hostpb.HostTruth
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *hostpb.ErrorDetail:
			said = fault.Parse(fault.Detail{Code: d.GetCode(), Message: d.GetMessage(), Cause: d.GetCause(), Remedy: d.GetRemedy(), Retryable: d.GetRetryable()}, httpStatus(s.Code()))
		case *hostpb.HostTruth:
			truth = d
		}
	}
	if said != nil {
		return WithTruth(said, truth)
	}
	cause := errors.New(s.Code().String() + ": " + s.Message())
	switch s.Code() {
	case codes.Canceled:
		return fault.Wrap(fault.CallCancelled, context.Canceled, "call of a peer")
	case codes.DeadlineExceeded:
		return fault.Wrap(fault.Deadline, context.DeadlineExceeded, "call of a peer")
	case codes.Unavailable:
		return fault.Wrap(fault.PeerUnavailable, errors.New(s.Message()), "call of a peer")
	case codes.Unauthenticated:
		return fault.Wrap(fault.TokenRejected, cause, "call of a peer")
	}
	return fault.Wrap(fault.Bug, cause, "call of a peer")
}

// truthful is a refusal that tells what the host holds.
type truthful struct {
	error
	truth *hostpb.HostTruth
}

func (t *truthful) Unwrap() error { return t.error }

// WithTruth adds to err what the host holds that refused. It crosses gRPC with
// it.
func WithTruth(err error, t *hostpb.HostTruth) error {
	if err == nil || t == nil {
		return err
	}
	return &truthful{err, t}
}

// TruthOf returns what the host holds that refused with err; nil: it did not
// say.
func TruthOf(err error) *hostpb.HostTruth {
	var t *truthful
	if errors.As(err, &t) {
		return t.truth
	}
	return nil
}

// httpStatus is the HTTP status of the class that c stands for. A code that
// this program does not know keeps its class by it.
func httpStatus(c codes.Code) int {
	for _, class := range fault.Classes() {
		if class.GRPC == uint32(c) {
			return class.HTTP
		}
	}
	return http.StatusInternalServerError
}
