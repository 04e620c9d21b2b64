// Package fault names everything that can go wrong.
//
// A Code is for programs: callers match it with errors.Is and never by text.
// Its Class says what a client should do, and carries the one mapping to HTTP,
// gRPC, ret_code and exit status. The words before the colon are for people.
// This package must never do I/O, log, or know a transport.
package fault

import (
	"context"
	"errors"
	"fmt"
)

// Class is what a client should do about a failure, with its number on every
// face of the system.
type Class struct {
	Name string
	HTTP int
	GRPC uint32
	// Ret is the ret_code of the JSON envelope, a number of its own range that
	// existing clients look for.
	Ret  int
	Exit int
	// Retry: the same call may succeed later without the caller changing it.
	Retry bool
}

// The classes. Expected refusals are not failures of the server.
var (
	Invalid     = &Class{"invalid", 400, 3, 130400, 2, false}
	Anonymous   = &Class{"unauthenticated", 401, 16, 130401, 3, false}
	Forbidden   = &Class{"forbidden", 403, 7, 130401, 3, false}
	NotFound    = &Class{"not found", 404, 5, 130404, 4, false}
	Conflict    = &Class{"conflict", 409, 10, 130409, 5, false}
	Superseded  = &Class{"superseded", 409, 9, 130409, 6, false}
	Exhausted   = &Class{"exhausted", 429, 8, 130429, 7, true}
	Unavailable = &Class{"unavailable", 503, 14, 130594, 8, true}
	Cancelled   = &Class{"cancelled", 499, 1, 130499, 9, false}
	Internal    = &Class{"internal", 500, 13, 130593, 1, false}
)

// Code is one thing that can go wrong. Ret, when not 0, replaces the class's
// ret_code. Meaning and Remedy are sentences for docs/faults.md and for people.
type Code struct {
	Name    string
	Class   *Class
	Ret     int
	Meaning string
	Remedy  string
}

// Error makes a bare Code an error, so that sentinels can be wrapped with %w.
func (c *Code) Error() string { return c.Name }

// RetCode returns the ret_code that the JSON envelope carries for c.
func (c *Code) RetCode() int {
	if c.Ret != 0 {
		return c.Ret
	}
	return c.Class.Ret
}

// Error is a failure with its own remedy or with a cause of another layer.
type Error struct {
	Code    *Code
	Message string // what was being done, and to what
	Cause   error  // what the layer below said; may be nil
	Remedy  string // replaces Code.Remedy when not empty
}

// Error returns message, code and cause, outermost first.
func (e *Error) Error() string {
	if e.Cause == nil {
		return e.Message + ": " + e.Code.Name
	}
	return e.Message + ": " + e.Code.Name + ": " + e.Cause.Error()
}

// Unwrap lets errors.Is find both the code and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Code}
	}
	return []error{e.Code, e.Cause}
}

// New returns an error of code c about the thing that format names.
func New(c *Code, format string, args ...any) error {
	return &Error{Code: c, Message: fmt.Sprintf(format, args...)}
}

// Wrap gives cause, an error of another layer, the code c. It is the outermost
// code, so Of returns c; errors.Is finds a code of the cause as well.
func Wrap(c *Code, cause error, format string, args ...any) error {
	return &Error{Code: c, Message: fmt.Sprintf(format, args...), Cause: cause}
}

// Of returns the outermost code in err. Errors without one are Bug, except
// the context's own: they are Cancelled and Deadline.
func Of(err error) *Code {
	if c, ok := codeOf(err); ok {
		return c
	}
	switch {
	case errors.Is(err, context.Canceled):
		return CallCancelled
	case errors.Is(err, context.DeadlineExceeded):
		return Deadline
	}
	return Bug
}

func codeOf(err error) (*Code, bool) {
	switch e := holder(err).(type) { //nolint:errorlint // holder found it in the tree
	case *Code:
		return e, true
	case *Error:
		return e.Code, true
	case *remote:
		return e.code, true
	}
	return nil, false
}

// holder returns the outermost error in err's tree that carries a code: a
// *Code, an *Error or a *remote. Of a branch the first child that leads to one
// counts.
func holder(err error) error {
	switch e := err.(type) { //nolint:errorlint // this walks the tree itself, outermost first
	case nil:
		return nil
	case *Code, *Error, *remote:
		return err
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if h := holder(inner); h != nil {
				return h
			}
		}
		return nil
	default:
		return holder(errors.Unwrap(err))
	}
}

// Detail is how a failure is shown on every face: the same five words in
// JSON, on the command line and in a log.
type Detail struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Cause     string `json:"cause"`
	Remedy    string `json:"remedy"`
	Retryable bool   `json:"retryable"`
}

// Describe returns err, which must not be nil, as a Detail. The text of an
// internal error is not shown: it may carry what a caller must not see. Of a
// failure that another process described, cause and remedy are as it said.
func Describe(err error) Detail {
	c := Of(err)
	d := Detail{Code: c.Name, Message: err.Error(), Cause: c.Meaning, Remedy: c.Remedy, Retryable: c.Class.Retry}
	switch e := holder(err).(type) { //nolint:errorlint // holder found it in the tree
	case *remote:
		d.Cause, d.Remedy, d.Retryable = e.Cause, e.Remedy, e.Retryable
	case *Error:
		if e.Remedy != "" {
			d.Remedy = e.Remedy
		}
		if e.Cause != nil {
			d.Cause = e.Cause.Error()
		}
	}
	if c == Bug {
		d.Message, d.Cause = "internal error", Bug.Meaning
	}
	return d
}

// Parse returns the error that a Detail from another process stands for, so
// that errors.Is works across the wire. An unknown code is kept by name and
// takes the class that the HTTP status names.
func Parse(d Detail, httpStatus int) error {
	c, ok := byName[d.Code]
	if !ok {
		c = &Code{Name: d.Code, Class: classOf(httpStatus), Meaning: d.Cause, Remedy: d.Remedy}
	}
	return &remote{Detail: d, code: c}
}

// remote is a failure that another process described.
type remote struct {
	Detail
	code *Code
}

func (r *remote) Error() string { return r.Message }
func (r *remote) Unwrap() error { return r.code }

// DetailOf returns err as a Detail; see Describe. It remains for callers that
// say that err may come from another process.
func DetailOf(err error) Detail { return Describe(err) }

func classOf(status int) *Class {
	for _, c := range []*Class{Invalid, Anonymous, Forbidden, NotFound, Conflict, Exhausted, Unavailable, Cancelled} {
		if c.HTTP == status {
			return c
		}
	}
	return Internal
}

// FromName returns an error of the code called name with message, for codes
// that a peer names without the rest. An unknown name takes the class of the
// HTTP status.
func FromName(name string, httpStatus int, message string) error {
	c, ok := byName[name]
	if !ok {
		c = &Code{Name: name, Class: classOf(httpStatus)}
	}
	return New(c, "%s", message)
}
