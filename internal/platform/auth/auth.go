// Package auth checks the shared secrets of the faces: API keys of users and
// tokens between roles. It fails closed: an unset secret admits nobody, unless
// the operator opened the system on purpose. It must never log a secret.
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

// EqualSecret compares in a time that depends on neither secret's content nor
// length.
func EqualSecret(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// gate is one secret that calls must carry.
type gate struct {
	secret config.Secret
	open   bool
	wrong  *fault.Code
	unset  string // remedy when there is no secret to compare with
}

// check returns nil when given is the secret, or the system stands open. call
// names what was asked for.
func (g gate) check(call, given string) error {
	switch {
	case g.open:
		return nil
	case g.secret == "":
		return &fault.Error{Code: fault.TokenUnset, Message: call, Remedy: g.unset}
	case !EqualSecret(given, g.secret.Reveal()):
		return fault.New(g.wrong, "%s", call)
	}
	return nil
}

// RequireAPIKey admits requests that carry key in X-API-KEY or as a bearer.
// Others are answered with fault.Unauthenticated, or fault.TokenUnset when
// there is no key to compare with.
func RequireAPIKey(key config.Secret, open bool) func(http.Handler) http.Handler {
	g := gate{key, open, fault.Unauthenticated, "set PADDOCK_API_KEY on the server, or start it with `paddock up`, which makes a key"}
	return g.require(func(r *http.Request) string {
		if k := r.Header.Get("X-API-KEY"); k != "" {
			return k
		}
		return bearer(r.Header.Get("Authorization"))
	})
}

// RequireToken admits requests that carry token in the given header. Others
// are answered with fault.TokenRejected, or fault.TokenUnset when there is no
// token to compare with.
func RequireToken(header string, token config.Secret, open bool) func(http.Handler) http.Handler {
	g := gate{secret: token, open: open, wrong: fault.TokenRejected}
	return g.require(func(r *http.Request) string { return r.Header.Get(header) })
}

func (g gate) require(given func(*http.Request) string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := g.check(r.Method+" "+r.URL.Path, given(r)); err != nil {
				serve.WriteError(w, r, err)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

func bearer(header string) string {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

func checkRPC(ctx context.Context, method string, token config.Secret, open bool) error {
	given := ""
	if v := metadata.ValueFromIncomingContext(ctx, "authorization"); len(v) == 1 {
		given = bearer(v[0])
	}
	g := gate{secret: token, open: open, wrong: fault.TokenRejected}
	return serve.GRPCError(g.check(method, given))
}

// UnaryServer admits calls that carry token as a bearer, and refuses as
// RequireToken does.
func UnaryServer(token config.Secret, open bool) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if err := checkRPC(ctx, info.FullMethod, token, open); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// StreamServer admits streams that carry token as a bearer.
func StreamServer(token config.Secret, open bool) grpc.StreamServerInterceptor {
	return func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := checkRPC(s.Context(), info.FullMethod, token, open); err != nil {
			return err
		}
		return next(srv, s)
	}
}

// Credentials adds token as a bearer to each call of a client.
func Credentials(token config.Secret) credentials.PerRPCCredentials { return perRPC(token) }

type perRPC config.Secret

func (p perRPC) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + config.Secret(p).Reveal()}, nil
}

// RequireTransportSecurity is false: roles of one machine speak over loopback.
func (p perRPC) RequireTransportSecurity() bool { return false }
