// Package logs makes the program's logger and carries the request id through a
// context. It must never decide what is worth logging.
package logs

import (
	"context"
	"io"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/trace"
)

// New returns a logger that writes to w. level is debug, info, warn or error;
// format is text or json; anything else counts as info and text. Each line of
// a context that has them carries request_id and trace_id.
func New(w io.Writer, level, format string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(strings.ToUpper(level))); err != nil {
		l = slog.LevelInfo
	}
	o := &slog.HandlerOptions{Level: l}
	if format == "json" {
		return slog.New(handler{slog.NewJSONHandler(w, o)})
	}
	return slog.New(handler{slog.NewTextHandler(w, o)})
}

type requestKey struct{}

// WithRequestID returns ctx with the id of the request that it serves.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestKey{}, id)
}

// RequestID returns the id of the request that ctx serves, or "".
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}

// WireID is RequestID for a header of a call to another role: "" when no header
// can carry it, as for an id with a line break that a caller chose.
func WireID(ctx context.Context) string {
	id := RequestID(ctx)
	if strings.ContainsFunc(id, func(r rune) bool { return r < ' ' || r > '~' }) {
		return ""
	}
	return id
}

// handler adds what the context knows to each line.
type handler struct{ slog.Handler }

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	id, span := RequestID(ctx), trace.SpanContextFromContext(ctx)
	if id != "" || span.HasTraceID() {
		r = r.Clone() // a handler beside this one may hold the same record
	}
	if id != "" {
		r.AddAttrs(slog.String(KeyRequestID, id))
	}
	if span.HasTraceID() {
		r.AddAttrs(slog.String(KeyTraceID, span.TraceID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h handler) WithAttrs(a []slog.Attr) slog.Handler { return handler{h.Handler.WithAttrs(a)} }
func (h handler) WithGroup(n string) slog.Handler      { return handler{h.Handler.WithGroup(n)} }
