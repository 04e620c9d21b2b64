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

// check returns nil when given is the secret, or the system stands open.
func check(given string, secret config.Secret, open bool, wrong *fault.Code) error {
	switch {
	case open:
		return nil
	case secret == "":
		return fault.New(fault.TokenUnset, "this call")
	case given == "" || !EqualSecret(given, secret.Reveal()):
		return fault.New(wrong, "this call")
	}
	return nil
}

// RequireAPIKey admits requests that carry key in X-API-KEY or as a bearer.
// Others are answered with fault.Unauthenticated.
func RequireAPIKey(key config.Secret, open bool) func(http.Handler) http.Handler {
	return require(key, open, fault.Unauthenticated, func(r *http.Request) string {
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
	return require(token, open, fault.TokenRejected, func(r *http.Request) string { return r.Header.Get(header) })
}

func require(secret config.Secret, open bool, wrong *fault.Code, given func(*http.Request) string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := check(given(r), secret, open, wrong); err != nil {
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

func checkRPC(ctx context.Context, token config.Secret, open bool) error {
	given := ""
	if v := metadata.ValueFromIncomingContext(ctx, "authorization"); len(v) == 1 {
		given = bearer(v[0])
	}
	return serve.GRPCError(check(given, token, open, fault.TokenRejected))
}

// UnaryServer admits calls that carry token as a bearer.
func UnaryServer(token config.Secret, open bool) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if err := checkRPC(ctx, token, open); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// StreamServer admits streams that carry token as a bearer.
func StreamServer(token config.Secret, open bool) grpc.StreamServerInterceptor {
	return func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := checkRPC(s.Context(), token, open); err != nil {
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
