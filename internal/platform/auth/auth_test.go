package auth_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/platform/logs"
	"github.com/paddock-dev/paddock/internal/platform/serve"
)

const secret = config.Secret("hunter2-hunter2-hunter2")

// ask sends one request through a gate and returns its fault, or nil.
func ask(t *testing.T, gate func(http.Handler) http.Handler, header, value string) error {
	t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/things", nil)
	if header != "" {
		r.Header.Set(header, value)
	}
	reached := false
	gate(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true })).ServeHTTP(w, r)
	if reached {
		return nil
	}
	var body struct{ Error fault.Detail }
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || strings.Contains(w.Body.String(), "hunter2") {
		t.Fatalf("%v: %s", err, w.Body)
	}
	return fault.Parse(body.Error, w.Code)
}

func TestAPIKey(t *testing.T) {
	for _, c := range []struct {
		key           config.Secret
		open          bool
		header, value string
		want          *fault.Code
	}{
		{secret, false, "X-API-KEY", secret.Reveal(), nil},
		{secret, false, "Authorization", "Bearer " + secret.Reveal(), nil},
		{secret, false, "Authorization", "bearer  " + secret.Reveal(), nil},
		{secret, false, "", "", fault.Unauthenticated},
		{secret, false, "X-API-KEY", "", fault.Unauthenticated},
		{secret, false, "X-API-KEY", "hunter3", fault.Unauthenticated},
		{secret, false, "X-API-KEY", secret.Reveal() + "x", fault.Unauthenticated},
		{secret, false, "X-API-KEY", "(hidden)", fault.Unauthenticated},
		{secret, false, "Authorization", "Basic " + secret.Reveal(), fault.Unauthenticated},
		{secret, false, "Authorization", secret.Reveal(), fault.Unauthenticated},
		{"", false, "X-API-KEY", "", fault.TokenUnset},
		{"", false, "X-API-KEY", "anything", fault.TokenUnset},
		{"", true, "", "", nil},
		{secret, true, "", "", nil},
	} {
		err := ask(t, auth.RequireAPIKey(c.key, c.open), c.header, c.value)
		if c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("key set %v, open %v, %s: %q: %v", c.key != "", c.open, c.header, c.value, err)
		}
	}
	if d := fault.DetailOf(ask(t, auth.RequireAPIKey("", false), "", "")); !strings.Contains(d.Remedy, "PADDOCK_API_KEY") || !strings.Contains(d.Message, "GET /things") {
		t.Errorf("no key set: %+v", d)
	}
}

func TestToken(t *testing.T) {
	const header = "X-Paddock-Host-Token"
	for _, c := range []struct {
		token         config.Secret
		open          bool
		header, value string
		want          *fault.Code
	}{
		{secret, false, header, secret.Reveal(), nil},
		{secret, false, header, "wrong", fault.TokenRejected},
		{secret, false, "", "", fault.TokenRejected},
		{secret, false, "Authorization", "Bearer " + secret.Reveal(), fault.TokenRejected},
		{"", false, header, "", fault.TokenUnset},
		{"", true, "", "", nil},
	} {
		err := ask(t, auth.RequireToken(header, c.token, c.open), c.header, c.value)
		if c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("token set %v, open %v, %s: %q: %v", c.token != "", c.open, c.header, c.value, err)
		}
	}
}

type host struct {
	hostpb.UnimplementedHostServiceServer
}

func (host) GetSandbox(context.Context, *hostpb.GetSandboxRequest) (*hostpb.GetSandboxResponse, error) {
	return &hostpb.GetSandboxResponse{}, nil
}

func (host) ReadFile(_ *hostpb.ReadFileRequest, s grpc.ServerStreamingServer[hostpb.ReadFileResponse]) error {
	return s.Send(&hostpb.ReadFileResponse{})
}

func TestGRPC(t *testing.T) {
	for _, c := range []struct {
		name          string
		server, given config.Secret
		open          bool
		want          *fault.Code
	}{
		{"right", secret, secret, false, nil},
		{"wrong", secret, "wrong", false, fault.TokenRejected},
		{"none", secret, "", false, fault.TokenRejected},
		{"unset", "", secret, false, fault.TokenUnset},
		{"open", "", "", true, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := dial(t, c.server, c.open, auth.Credentials(c.given))
			_, unary := client.GetSandbox(t.Context(), &hostpb.GetSandboxRequest{})
			stream, err := client.ReadFile(t.Context(), &hostpb.ReadFileRequest{})
			if err != nil {
				t.Fatal(err)
			}
			_, streamed := stream.Recv()
			for _, err := range []error{unary, streamed} {
				if c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) {
					t.Errorf("got %v", err)
				}
			}
		})
	}
}

func dial(t *testing.T, token config.Secret, open bool, creds interface {
	GetRequestMetadata(context.Context, ...string) (map[string]string, error)
	RequireTransportSecurity() bool
},
) hostpb.HostServiceClient {
	t.Helper()
	g := serve.NewGRPC("test", logs.New(&bytes.Buffer{}, "error", "text"), prometheus.NewRegistry(),
		grpc.ChainUnaryInterceptor(auth.UnaryServer(token, open)), grpc.ChainStreamInterceptor(auth.StreamServer(token, open)))
	hostpb.RegisterHostServiceServer(g, host{})
	s, err := serve.GRPC(t.Context(), "127.0.0.1:0", g)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	conn, err := grpc.NewClient(s.Addr(), append(serve.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(creds))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		<-done //nolint:errcheck // the test is over
	})
	return hostpb.NewHostServiceClient(conn)
}

func TestEqualSecret(t *testing.T) {
	if !auth.EqualSecret("a", "a") || auth.EqualSecret("a", "b") || auth.EqualSecret("a", "aa") {
		t.Error("it compares wrongly")
	}
}
