package source_test

import (
	"encoding/base64"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/source"
)

// leads has the registry answer requests for a part of its paths by a redirect.
func (s *stock) leads(part, to string) {
	s.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, part) {
			return false
		}
		http.Redirect(w, r, to+r.URL.Path, http.StatusTemporaryRedirect)
		return true
	})
}

// elsewhere is a server that counts its requests. Those with credentials are
// counted too.
func elsewhere(t *testing.T, ip string, next http.Handler) (host string, requests, credentials *atomic.Int32) {
	t.Helper()
	requests, credentials = new(atomic.Int32), new(atomic.Int32)
	s := newStock()
	s.set(func(w http.ResponseWriter, r *http.Request) bool {
		requests.Add(1)
		if r.Header.Get("Authorization") != "" {
			credentials.Add(1)
		}
		if next != nil {
			next.ServeHTTP(w, r)
		}
		return true
	})
	return s.serveAt(t, ip), requests, credentials
}

// readAll resolves and reads the first layer.
func readAll(t *testing.T, r source.Request) error {
	t.Helper()
	im, err := source.Resolve(t.Context(), r)
	if err != nil {
		return err
	}
	defer im.Close()
	_, err = read(t, im, 0)
	return err
}

func TestRedirects(t *testing.T) {
	s, _ := twoLayers(t, ociManifest, ociConfig, ociLayer, ociLayer)
	host := s.serve(t)
	for _, c := range []struct {
		name   string
		to     string // of http://; empty: the server elsewhere
		ip     string // where it listens
		listed []string
		want   *fault.Code // nil: it is followed
		says   string
	}{
		{name: "to another private address", ip: "127.0.0.2", want: fault.RegistryRedirect, says: "127.0.0.2"},
		{name: "to a listed one", ip: "127.0.0.2", listed: []string{"127.0.0.2:*"}},
		{name: "to the registry's own host in the clear", ip: "127.0.0.1", want: fault.RegistryDown, says: "plain HTTP"},
		{name: "to the registry's own host when that is listed", ip: "127.0.0.1", listed: []string{"127.0.0.1:*"}},
		{name: "to where clouds keep secrets", to: "http://169.254.169.254", want: fault.RegistryRedirect, says: "169.254.169.254"},
		{name: "and so over TLS", to: "https://169.254.169.254", want: fault.RegistryRedirect, says: "169.254.169.254"},
		{name: "to a private network", to: "https://10.1.2.3", want: fault.RegistryRedirect, says: "10.1.2.3"},
		{name: "to a carrier's network", to: "https://100.64.0.1", want: fault.RegistryRedirect},
		{name: "to nowhere in particular", to: "https://0.0.0.0", want: fault.RegistryRedirect},
		{name: "by version 6", to: "https://[fd00::1]:8443", want: fault.RegistryRedirect, says: "fd00::1"},
		{name: "by version 4 within version 6", to: "https://[::ffff:10.0.0.1]", want: fault.RegistryRedirect},
		{name: "by version 4 behind a translator", to: "https://[64:ff9b::a00:1]", want: fault.RegistryRedirect},
		{name: "to a link's address", to: "https://[fe80::1]", want: fault.RegistryRedirect},
		{name: "to a file", to: "file://", want: fault.RegistryRedirect, says: `"file"`},
		{name: "by a name", to: "https://localhost:1", want: fault.RegistryRedirect, says: "localhost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// A registry that is called by name and lies at a private address is
			// not the address itself.
			name := host
			if c.says == "localhost" {
				name = s.serveAt(t, "127.0.0.9")
			}
			to, ip := c.to, c.ip
			var met *atomic.Int32
			if to == "" {
				var other string
				other, met, _ = elsewhere(t, ip, http.HandlerFunc(s.answer))
				to = "http://" + other
			}
			for _, part := range []string{"/manifests/", "/blobs/"} {
				s.leads(part, to)
				r := request(name + "/app:1")
				r.InsecureRegistries = append([]string{name}, c.listed...)
				err := readAll(t, r)
				if c.want == nil {
					if err != nil || met.Load() == 0 {
						t.Errorf("%s: %v", part, err)
					}
					continue
				}
				refused(t, err, c.want, c.says)
				if met != nil && met.Load() > 0 {
					t.Errorf("%s: it was followed", part)
				}
			}
		})
	}
}

func TestPrivateAddresses(t *testing.T) {
	for address, want := range map[string]bool{
		"8.8.8.8": false, "1.1.1.1": false, "172.15.0.1": false, "172.32.0.1": false, "100.63.0.1": false, "100.128.0.1": false, "2606:4700::1111": false, "::ffff:8.8.8.8": false,
		"127.0.0.1": true, "127.9.9.9": true, "10.0.0.1": true, "172.16.0.1": true, "172.31.255.255": true, "192.168.1.1": true, "169.254.169.254": true,
		"0.0.0.0": true, "0.1.2.3": true, "100.64.0.1": true, "192.0.0.8": true, "198.18.0.1": true, "224.0.0.1": true, "255.255.255.255": true, "240.0.0.1": true,
		"::": true, "::1": true, "fe80::1": true, "fe80::1%eth0": true, "fec0::1": true, "fc00::1": true, "fd00:ec2::254": true, "ff02::1": true,
		"::ffff:127.0.0.1": true, "::127.0.0.1": true, "64:ff9b::7f00:1": true, "2002:7f00:1::": true,
	} {
		if got := source.IsPrivate(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
}

// The operator chose the proxy, which may be anywhere; nobody else may.
func TestAProxyMayBePrivate(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := l.Addr().String()
	if err := source.Dial(t.Context(), "reg.example", "127.0.0.1:3128", at); err != nil {
		t.Errorf("the proxy: %v", err)
	}
	if err := source.Dial(t.Context(), "127.0.0.1:5000", "", at); err != nil {
		t.Errorf("the registry's own host: %v", err)
	}
	refused(t, source.Dial(t.Context(), "reg.example", "proxy.example:3128", at), fault.RegistryRedirect, "127.0.0.1")
}

// A registry that is named by its address may lead to itself, and gets its
// token there.
func TestARedirectWithinTheRegistry(t *testing.T) {
	s, _ := twoLayers(t, ociManifest, ociConfig, ociLayer, ociLayer)
	host := s.serve(t)
	s.set(func(w http.ResponseWriter, r *http.Request) bool {
		switch _, password, _ := r.BasicAuth(); {
		case r.URL.Path == "/token" && password != "open":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/token":
			_, _ = w.Write([]byte(`{"token":"t1"}`))
		case r.Header.Get("Authorization") != "Bearer t1":
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+host+`/token"`)
			w.WriteHeader(http.StatusUnauthorized)
		case strings.Contains(r.URL.Path, "/blobs/") && r.URL.RawQuery == "":
			http.Redirect(w, r, "http://"+host+r.URL.Path+"?again", http.StatusTemporaryRedirect)
		default:
			return false
		}
		return true
	})
	r := request(host + "/app:1")
	r.Auth = source.Auth{Username: "ann", Password: "open"}
	if err := readAll(t, r); err != nil {
		t.Error(err)
	}
}

func TestRedirectsEnd(t *testing.T) {
	s, _ := twoLayers(t, ociManifest, ociConfig, ociLayer, ociLayer)
	host := s.serve(t)
	s.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		http.Redirect(w, r, r.URL.Path+"?X-Signature=secret", http.StatusFound)
		return true
	})
	err := readAll(t, request(host+"/app:1"))
	refused(t, err, fault.RegistryDown, "led on")
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error tells what signs an address: %v", err)
	}
}

// basic has the registry ask for a user and a password.
func (s *stock) basic(user, password string) {
	s.set(func(w http.ResponseWriter, r *http.Request) bool {
		if u, p, _ := r.BasicAuth(); u == user && p == password {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
}

func TestCredentials(t *testing.T) {
	s, _ := twoLayers(t, ociManifest, ociConfig, ociLayer, ociLayer)
	host := s.serve(t)
	ref := host + "/app:1"
	s.basic("ann", "open")
	try := func(what string, auth source.Auth, want *fault.Code) {
		t.Helper()
		r := request(ref)
		r.Auth = auth
		err := readAll(t, r)
		if want == nil && err != nil || want != nil && fault.Of(err) != want {
			t.Errorf("%s: %v", what, err)
		}
		if err != nil && auth.Password != "" && strings.Contains(err.Error(), auth.Password) {
			t.Errorf("%s: the error tells the password: %v", what, err)
		}
	}
	keep := t.TempDir()
	t.Setenv("DOCKER_CONFIG", keep)
	try("none", source.Auth{}, fault.ImageDenied)
	try("wrong", source.Auth{Username: "ann", Password: "wrong"}, fault.ImageDenied)
	try("right", source.Auth{Username: "ann", Password: "open"}, nil)

	login := base64.StdEncoding.EncodeToString([]byte("ann:open"))
	if err := os.WriteFile(filepath.Join(keep, "config.json"), []byte(`{"auths":{"`+host+`":{"auth":"`+login+`"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	try("docker's", source.Auth{}, nil)
	try("given ones before docker's", source.Auth{Username: "ann", Password: "wrong"}, fault.ImageDenied)
}

// Credentials stay with the registry, even next door.
func TestCredentialsGoToNobodyElse(t *testing.T) {
	s, _ := twoLayers(t, ociManifest, ociConfig, ociLayer, ociLayer)
	host := s.serve(t)
	for _, ip := range []string{"127.0.0.1", "127.0.0.2"} {
		other, met, credentials := elsewhere(t, ip, http.HandlerFunc(s.answer))
		s.set(func(w http.ResponseWriter, r *http.Request) bool {
			switch _, password, _ := r.BasicAuth(); {
			case password != "open":
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
			case strings.Contains(r.URL.Path, "/blobs/"):
				http.Redirect(w, r, "http://"+other+r.URL.Path, http.StatusTemporaryRedirect)
			default:
				return false
			}
			return true
		})
		r := request(host + "/app:1")
		r.InsecureRegistries, r.Auth = []string{host, other}, source.Auth{Username: "ann", Password: "open"}
		if err := readAll(t, r); err != nil || met.Load() == 0 {
			t.Errorf("%s: %d requests, %v", ip, met.Load(), err)
		}
		if credentials.Load() > 0 {
			t.Errorf("%s got credentials", ip)
		}
	}
}

// bearer has the registry ask for a token of the realm.
func (s *stock) bearer(realm, token string) {
	s.set(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == "Bearer "+token {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="s"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
}

func TestTokenServers(t *testing.T) {
	s, _ := twoLayers(t, ociManifest, ociConfig, ociLayer, ociLayer)
	tokens := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); u != "ann" || p != "open" || r.FormValue("service") != "s" || r.FormValue("scope") != "repository:app:pull" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte(`{"token":"t1"}`))
	})
	at := func(ip string) string { host, _, _ := elsewhere(t, ip, tokens); return host }
	own, other := at("127.0.0.1"), at("127.0.0.2")
	host := s.serve(t)
	for _, c := range []struct {
		name, realm string
		listed      []string
		auth        source.Auth
		want        *fault.Code
		says        string
	}{
		{name: "beside the registry", realm: "http://" + own + "/token", listed: []string{own}},
		{name: "beside the registry in the clear", realm: "http://" + own + "/token", want: fault.RegistryDown, says: "plain HTTP"},
		{name: "elsewhere and listed", realm: "http://" + other + "/token", listed: []string{"127.0.0.2:*"}},
		{name: "elsewhere", realm: "http://" + other + "/token", want: fault.RegistryRedirect, says: "127.0.0.2"},
		{name: "wrong credentials", realm: "http://" + own + "/token", listed: []string{own}, auth: source.Auth{Username: "ann", Password: "wrong"}, want: fault.ImageDenied},
		{name: "no credentials", realm: "http://" + own + "/token", listed: []string{own}, auth: source.Auth{Username: "-", Password: "-"}, want: fault.ImageDenied},
		{name: "where clouds keep secrets", realm: "https://169.254.169.254/latest", want: fault.RegistryRedirect, says: "169.254.169.254"},
		{name: "by version 6", realm: "https://[fd00:ec2::254]:8443/latest", want: fault.RegistryRedirect, says: "fd00:ec2::254"},
		{name: "no server", realm: "gopher://x", want: fault.RegistryDown},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.bearer(c.realm, "t1")
			r := request(host + "/app:1")
			r.InsecureRegistries, r.Auth = append([]string{host}, c.listed...), c.auth
			if r.Auth == (source.Auth{}) {
				r.Auth = source.Auth{Username: "ann", Password: "open"}
			}
			if err := readAll(t, r); c.want != nil {
				refused(t, err, c.want, c.says)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// A token server must not lead to where the registry may not.
func TestATokenServerThatLeadsOn(t *testing.T) {
	s, _ := twoLayers(t, ociManifest, ociConfig, ociLayer, ociLayer)
	host := s.serve(t)
	inner, met, _ := elsewhere(t, "127.0.0.2", nil)
	realm, _, _ := elsewhere(t, "127.0.0.1", http.RedirectHandler("http://"+inner+"/token", http.StatusFound))
	s.bearer("http://"+realm+"/token", "t1")
	r := request(host + "/app:1")
	r.InsecureRegistries = []string{host, realm}
	refused(t, readAll(t, r), fault.RegistryRedirect, "127.0.0.2")
	if met.Load() > 0 {
		t.Error("it was followed")
	}
	// Where it is meant so, the token comes, and no credentials go along.
	given, _, credentials := elsewhere(t, "127.0.0.2", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"access_token":"t1"}`)) }))
	realm, _, _ = elsewhere(t, "127.0.0.1", http.RedirectHandler("http://"+given+"/token", http.StatusFound))
	s.bearer("http://"+realm+"/token", "t1")
	r.InsecureRegistries, r.Auth = []string{host, realm, given}, source.Auth{Username: "ann", Password: "open"}
	if err := readAll(t, r); err != nil {
		t.Error(err)
	}
	if credentials.Load() > 0 {
		t.Error("the password went along")
	}
}

// A registry over TLS whose name leads to a private address is the operator's
// to trust: its certificate must be right, and is not here.
func TestTLSIsVerified(t *testing.T) {
	s, _ := twoLayers(t, ociManifest, ociConfig, ociLayer, ociLayer)
	h := httptest.NewTLSServer(s)
	t.Cleanup(h.Close)
	host := strings.TrimPrefix(h.URL, "https://")
	r := request(host + "/app:1")
	r.InsecureRegistries = nil
	_, err := source.Resolve(t.Context(), r)
	refused(t, err, fault.RegistryDown, "certificate")
}
