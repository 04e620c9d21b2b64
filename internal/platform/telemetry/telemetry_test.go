package telemetry_test

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
)

// collector is an OTLP/HTTP receiver that keeps what it is sent.
type collector struct {
	mu   sync.Mutex
	sent []string // path and body
}

func (c *collector) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, r.URL.Path+" "+string(b))
}

func TestTracesGoToTheCollector(t *testing.T) {
	c := &collector{}
	server := httptest.NewServer(c)
	defer server.Close()
	flush, err := telemetry.Setup(t.Context(), config.Telemetry{OTLPEndpoint: server.URL + "/v1/traces", SampleRatio: 1}, "paddock-test")
	if err != nil {
		t.Fatal(err)
	}
	_, span := otel.Tracer("test").Start(t.Context(), "place sandbox")
	span.End()
	if err := flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := strings.Join(c.sent, "\n")
	for _, want := range []string{"/v1/traces ", "paddock-test", "place sandbox"} {
		if !strings.Contains(all, want) {
			t.Errorf("the collector was not told of %q", want)
		}
	}
}

func TestWithoutACollectorTheTraceStillTravels(t *testing.T) {
	flush, err := telemetry.Setup(t.Context(), config.Telemetry{SampleRatio: 1}, "paddock-test")
	if err != nil {
		t.Fatal(err)
	}
	ctx, span := otel.Tracer("test").Start(t.Context(), "x")
	carried := telemetry.Carrier(ctx)
	if carried["traceparent"] == "" {
		t.Fatalf("nothing travels: %v", carried)
	}
	joined := trace.SpanContextFromContext(telemetry.Join(t.Context(), carried))
	if joined.TraceID() != span.SpanContext().TraceID() || !joined.IsRemote() {
		t.Error("another process would begin another trace")
	}
	span.End()
	if err := flush(t.Context()); err != nil {
		t.Errorf("nothing to send: %v", err)
	}
}

func TestACollectorThatIsAwayIsSaid(t *testing.T) {
	var out strings.Builder
	telemetry.LogErrors(slog.New(slog.NewTextHandler(&out, nil)))
	otel.Handle(errors.New("no route"))
	if !strings.Contains(out.String(), "traces are lost") || !strings.Contains(out.String(), "no route") {
		t.Errorf("logged %q", out.String())
	}
	if _, err := telemetry.Setup(t.Context(), config.Telemetry{OTLPEndpoint: "http://a b", SampleRatio: 1}, "x"); err != nil && !errors.Is(err, fault.BadConfig) {
		t.Errorf("a bad address: %v", err)
	}
}

func TestMetricsAreServed(t *testing.T) {
	w := httptest.NewRecorder()
	telemetry.Handler(telemetry.NewRegistry()).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{"go_goroutines ", "process_open_fds "} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("no %s", want)
		}
	}
}
