package logs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/logs"
)

func TestLinesCarryWhatTheContextKnows(t *testing.T) {
	var out bytes.Buffer
	log := logs.New(&out, "info", "json").With("role", "master")
	id := trace.TraceID{1}
	ctx := trace.ContextWithSpanContext(logs.WithRequestID(t.Context(), "req-1"), trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{2}}))
	log.InfoContext(ctx, "said", logs.Err(fault.New(fault.NoHost, "place")))
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"role": "master", "request_id": "req-1", "trace_id": id.String(), "code": "no_host", "error": "place: no_host", "msg": "said"} {
		if line[key] != want {
			t.Errorf("%s is %v, want %s", key, line[key], want)
		}
	}
	out.Reset()
	log.InfoContext(context.Background(), "said", logs.Err(nil))
	if s := out.String(); strings.Contains(s, "request_id") || strings.Contains(s, "trace_id") || strings.Contains(s, "error") {
		t.Errorf("a line without context says %s", s)
	}
}

func TestLevelAndFormat(t *testing.T) {
	for _, c := range []struct {
		level, format string
		shown         []slog.Level
		begins        string
	}{
		{"debug", "json", []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelError}, "{"},
		{"warn", "text", []slog.Level{slog.LevelError}, "time="},
		{"nonsense", "nonsense", []slog.Level{slog.LevelInfo, slog.LevelError}, "time="},
	} {
		var out bytes.Buffer
		log := logs.New(&out, c.level, c.format)
		for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelError} {
			log.Log(t.Context(), l, "said")
		}
		if n := strings.Count(out.String(), "\n"); n != len(c.shown) || !strings.HasPrefix(out.String(), c.begins) {
			t.Errorf("%s %s: %q", c.level, c.format, out.String())
		}
	}
}

func TestErrOfAPlainErrorIsInternal(t *testing.T) {
	var out bytes.Buffer
	logs.New(&out, "info", "text").Info("said", logs.Err(errors.New("plain")))
	if s := out.String(); !strings.Contains(s, "code=internal error=plain") {
		t.Error(s)
	}
}
