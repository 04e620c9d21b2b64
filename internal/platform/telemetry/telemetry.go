// Package telemetry sets up traces and metrics. Traces are exported only when
// a collector is configured; the trace context travels between roles always.
package telemetry

import (
	"context"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
)

// flushTime bounds how long the end of the program waits for a collector.
const flushTime = 5 * time.Second

// Seconds are the buckets of every histogram of durations: 0.5 ms to 2 min.
var Seconds = prometheus.ExponentialBuckets(0.0005, 4, 10)

// LogErrors sends what goes wrong inside the tracer, such as a collector that
// does not answer, to log instead of to standard error.
func LogErrors(log *slog.Logger) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("traces are lost", slog.String("error", err.Error()))
	}))
}

// Setup installs the tracer of the process. The returned function sends what
// is left and must be called before the program ends.
func Setup(ctx context.Context, c config.Telemetry, service string) (shutdown func(context.Context) error, err error) {
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	options := []sdktrace.TracerProviderOption{
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", service), attribute.String("service.version", version()))),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(c.SampleRatio))),
	}
	if c.OTLPEndpoint != "" {
		exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(c.OTLPEndpoint))
		if err != nil {
			return nil, fault.Wrap(fault.BadConfig, err, "telemetry.otlp_endpoint %q", c.OTLPEndpoint)
		}
		options = append(options, sdktrace.WithBatcher(exporter))
	}
	provider := sdktrace.NewTracerProvider(options...)
	otel.SetTracerProvider(provider)
	return func(ctx context.Context) error {
		bound, cancel := context.WithTimeout(ctx, flushTime)
		defer cancel()
		if err := provider.Shutdown(bound); err != nil {
			return fault.Wrap(fault.PeerUnavailable, err, "collector of telemetry.otlp_endpoint")
		}
		return nil
	}, nil
}

// version is what the build knows of itself: a module version, or the commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && info.Main.Version == "(devel)" {
			return s.Value
		}
	}
	return info.Main.Version
}

// Carrier returns the trace context of ctx, to be kept with work that follows
// a commit or travels in a message.
func Carrier(ctx context.Context) map[string]string {
	c := propagation.MapCarrier{}
	otel.GetTextMapPropagator().Inject(ctx, c)
	return c
}

// Join returns ctx within the trace that c carries.
func Join(ctx context.Context, c map[string]string) context.Context {
	return otel.GetTextMapPropagator().Extract(ctx, propagation.MapCarrier(c))
}

// NewRegistry returns a registry that counts the process itself.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Handler serves r to Prometheus.
func Handler(r *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}
