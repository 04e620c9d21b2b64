package logs

import (
	"log/slog"

	"github.com/paddock-dev/paddock/internal/fault"
)

// Keys of the attributes that the platform writes, so that one thing has one
// name in every line. An id goes by its name on the wire, as in sandbox_id.
const (
	KeyRequestID = "request_id"
	KeyTraceID   = "trace_id"
	KeyCode      = "code"
	KeyError     = "error"
	KeyTook      = "took"
)

// Err returns err as the attributes code and error.
func Err(err error) slog.Attr {
	if err == nil {
		return slog.Attr{} // which handlers leave out
	}
	// A group without a name stands in the line itself.
	return slog.Group("", slog.String(KeyCode, fault.Of(err).Name), slog.String(KeyError, err.Error()))
}
