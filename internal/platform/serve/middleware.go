package serve

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/id"
	"github.com/paddock-dev/paddock/internal/platform/logs"
)

// headerRequestID carries the id that joins the logs of all roles.
const headerRequestID = "X-Request-Id"

var requestIDForm = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)

// Middleware is what every HTTP face does around its handlers.
type Middleware struct {
	Log      *slog.Logger
	duration *prometheus.HistogramVec
}

// NewMiddleware returns the middleware of the face called name and registers
// its histogram.
func NewMiddleware(name string, log *slog.Logger, reg prometheus.Registerer) *Middleware {
	m := &Middleware{Log: log, duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:        "paddock_http_request_seconds",
		Help:        "Duration of HTTP requests by route and status.",
		ConstLabels: prometheus.Labels{"face": name},
		Buckets:     prometheus.ExponentialBuckets(0.0005, 4, 10),
	}, []string{"route", "status"})}
	reg.MustRegister(m.duration)
	return m
}

// Wrap gives mux request ids, an access log, spans, metrics, and an end to
// panics.
func (m *Middleware) Wrap(mux *http.ServeMux) http.Handler {
	inner := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		given := r.Header.Get(headerRequestID)
		if !requestIDForm.MatchString(given) {
			given = id.New("req-")
		}
		w.Header().Set(headerRequestID, given)
		rec := &recorder{ResponseWriter: w, status: http.StatusOK}
		ctx := context.WithValue(logs.WithRequestID(r.Context(), given), recorderKey{}, rec)
		r = r.WithContext(ctx)
		defer func() {
			if p := recover(); p != nil {
				m.panicked(rec, r, p)
			}
			m.done(rec, r, mux, began)
		}()
		mux.ServeHTTP(rec, r)
	})
	return otelhttp.NewHandler(inner, "http", otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string {
		_, route := mux.Handler(r)
		return route
	}))
}

func (m *Middleware) panicked(rec *recorder, r *http.Request, p any) {
	if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so too
		panic(p)
	}
	m.Log.ErrorContext(r.Context(), "handler panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	if !rec.began {
		WriteError(rec, r, fault.New(fault.Bug, "%s", fmt.Sprint(p)))
	}
}

func (m *Middleware) done(rec *recorder, r *http.Request, mux *http.ServeMux, began time.Time) {
	_, route := mux.Handler(r)
	if route == "" {
		route = "unknown"
	}
	took := time.Since(began)
	m.duration.WithLabelValues(route, strconv.Itoa(rec.status)).Observe(took.Seconds())
	level := slog.LevelDebug
	attrs := []slog.Attr{slog.String("route", route), slog.Int("status", rec.status), slog.Duration("took", took)}
	if rec.err != nil {
		attrs = append(attrs, slog.String("code", fault.Of(rec.err).Name), slog.String("error", rec.err.Error()))
		level = slog.LevelInfo
		if rec.status >= http.StatusInternalServerError {
			level = slog.LevelWarn
		}
	}
	m.Log.LogAttrs(r.Context(), level, "request", attrs...)
}

type recorderKey struct{}

// note keeps err for the access log of the request that ctx serves.
func note(ctx context.Context, err error) {
	if rec, ok := ctx.Value(recorderKey{}).(*recorder); ok {
		rec.err = err
	}
}

// recorder remembers how a request was answered.
type recorder struct {
	http.ResponseWriter
	status int
	began  bool
	err    error
}

func (r *recorder) WriteHeader(status int) {
	if !r.began {
		r.status, r.began = status, true
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.began = true
	return r.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController flush.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
