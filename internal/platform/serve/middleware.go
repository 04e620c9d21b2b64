package serve

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/logs"
	"github.com/paddock-dev/paddock/internal/platform/telemetry"
)

// headerRequestID carries the id that joins the logs of all roles.
const headerRequestID = "X-Request-Id"

var requestIDForm = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)

// Middleware is what every HTTP face does around its handlers.
type Middleware struct {
	Log      *slog.Logger
	bodyTime time.Duration
	duration *prometheus.HistogramVec
}

// NewMiddleware returns the middleware of the face called name and registers
// its histogram.
func NewMiddleware(name string, log *slog.Logger, reg prometheus.Registerer) *Middleware {
	m := &Middleware{Log: log, bodyTime: bodyTime, duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:        "paddock_http_request_seconds",
		Help:        "Duration of HTTP requests by route and status.",
		ConstLabels: prometheus.Labels{"face": name},
		Buckets:     telemetry.Seconds,
	}, []string{"route", "status"})}
	reg.MustRegister(m.duration)
	return m
}

// Wrap gives mux request ids, an access log, spans, metrics, coded answers for
// paths that it does not have, and an end to panics.
func (m *Middleware) Wrap(mux *http.ServeMux) http.Handler {
	inner := http.HandlerFunc(func(w http.ResponseWriter, outer *http.Request) {
		began := time.Now()
		given := requestID(outer.Header.Get(headerRequestID))
		w.Header().Set(headerRequestID, given)
		rec := &recorder{ResponseWriter: w, status: http.StatusOK}
		patient(w, outer, m.bodyTime)
		r := outer.WithContext(context.WithValue(logs.WithRequestID(outer.Context(), given), recorderKey{}, rec))
		defer func() {
			p := recover()
			if p != nil {
				m.panicked(rec, r, p)
			}
			outer.Pattern = r.Pattern // names the span
			m.done(rec, r, began)
			if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so too
				panic(p)
			}
		}()
		if h, route := mux.Handler(r); route == "" {
			refuse(rec, r, h)
			return
		}
		mux.ServeHTTP(rec, r)
	})
	return otelhttp.NewHandler(inner, "http", otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string {
		if r.Pattern == "" {
			return r.Method
		}
		return r.Pattern
	}))
}

// refuse answers for a path that does not exist, or does not take the method,
// as every refusal is answered. h is how the mux would say it.
func refuse(rec *recorder, r *http.Request, h http.Handler) {
	said := &answer{header: rec.Header()}
	h.ServeHTTP(said, r)
	if said.status == http.StatusMethodNotAllowed {
		writeError(rec, r, fault.New(fault.InvalidInput, "%s takes %s, not %s", r.URL.Path, rec.Header().Get("Allow"), r.Method), said.status)
		return
	}
	WriteError(rec, r, &fault.Error{Code: fault.NoSuchThing, Message: "no such path: " + r.Method + " " + r.URL.Path, Remedy: "check the address: is it that of the right role?"})
}

// answer keeps the status of a handler whose body is not wanted.
type answer struct {
	header http.Header
	status int
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(b []byte) (int, error) { return len(b), nil }

// panicked answers for a handler that panicked, if nobody has.
func (m *Middleware) panicked(rec *recorder, r *http.Request, p any) {
	if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so too
		return
	}
	m.Log.ErrorContext(r.Context(), "handler panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	if !rec.began {
		WriteError(rec, r, fault.New(fault.Bug, "%s", fmt.Sprint(p)))
	}
}

func (m *Middleware) done(rec *recorder, r *http.Request, began time.Time) {
	route := r.Pattern
	if route == "" {
		route = "unknown" // any path: as a label it would have no bound
	}
	took := time.Since(began)
	m.duration.WithLabelValues(route, strconv.Itoa(rec.status)).Observe(took.Seconds())
	level := slog.LevelDebug
	attrs := []slog.Attr{slog.String("route", route), slog.String("path", r.URL.Path), slog.Int("status", rec.status), slog.Duration(logs.KeyTook, took)}
	if rec.err != nil {
		attrs, level = append(attrs, logs.Err(rec.err)), levelOf(rec.err)
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
	if !r.began && status >= http.StatusOK { // 1xx only announces
		r.status, r.began = status, true
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.began = true
	return r.ResponseWriter.Write(b)
}

// ReadFrom keeps the way from file to socket inside the kernel, for downloads.
func (r *recorder) ReadFrom(src io.Reader) (int64, error) {
	r.began = true
	return io.Copy(r.ResponseWriter, src)
}

// Flush lets handlers stream that ask for an http.Flusher.
func (r *recorder) Flush() {
	r.began = true
	_ = http.NewResponseController(r.ResponseWriter).Flush() // a writer that cannot flush sends later
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
