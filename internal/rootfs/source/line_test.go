package source_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/source"
)

// oneLayer is a stock of an image with one plain layer of n bytes.
func oneLayer(t testing.TB, n int) (s *stock, layer []byte) {
	t.Helper()
	layer = make([]byte, n)
	for i := range layer {
		layer[i] = byte(i * i >> 8)
	}
	s = newStock()
	s.tags["1"] = s.image(t, spec{parts: []part{{plain: layer, mediaType: ociLayer}}})
	return s, layer
}

// ofLayer has f answer what is asked of the layer.
func (s *stock) ofLayer(layer []byte, f func(w http.ResponseWriter, r *http.Request)) {
	s.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, sumOf(layer)) {
			return false
		}
		f(w, r)
		return true
	})
}

// cut ends the connection in the middle of an answer.
func cut(w http.ResponseWriter) {
	_ = http.NewResponseController(w).Flush() // what fails here fails at the other end too
	panic(http.ErrAbortHandler)
}

func TestABrokenLineGoesOn(t *testing.T) {
	defer source.Hurry(time.Second)()
	const size = 3 << 20
	s, layer := oneLayer(t, size)
	host := s.serve(t)
	var asked atomic.Int32
	for name, f := range map[string]func(w http.ResponseWriter, r *http.Request){
		"by a range": func(w http.ResponseWriter, r *http.Request) {
			from := 0
			if h := r.Header.Get("Range"); h != "" {
				if _, err := fmt.Sscanf(h, "bytes=%d-", &from); err != nil {
					t.Error(err)
				}
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, size-1, size))
			}
			w.Header().Set("Content-Length", strconv.Itoa(size-from))
			if from > 0 {
				w.WriteHeader(http.StatusPartialContent)
			}
			rest := layer[from:]
			if asked.Add(1) < 6 { // often, but each brings enough
				_, _ = w.Write(rest[:min(len(rest), 1<<19+100)])
				cut(w)
			}
			_, _ = w.Write(rest)
		},
		"from the beginning": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(size))
			if asked.Add(1) == 1 {
				_, _ = w.Write(layer[:size/2])
				cut(w)
			}
			_, _ = w.Write(layer)
		},
		"after a failed answer": func(w http.ResponseWriter, r *http.Request) {
			switch asked.Add(1) {
			case 1:
				w.Header().Set("Content-Length", strconv.Itoa(size))
				_, _ = w.Write(layer[:size/2])
				cut(w)
			case 2:
				w.WriteHeader(http.StatusBadGateway)
			default:
				http.ServeContent(w, r, "", mtime, bytes.NewReader(layer))
			}
		},
		"after silence": func(w http.ResponseWriter, r *http.Request) {
			if asked.Add(1) == 1 {
				w.Header().Set("Content-Length", strconv.Itoa(size))
				_, _ = w.Write(layer[:size/2])
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
				return
			}
			http.ServeContent(w, r, "", mtime, bytes.NewReader(layer))
		},
	} {
		t.Run(name, func(t *testing.T) {
			asked.Store(0)
			s.ofLayer(layer, f)
			got, err := read(t, resolve(t, request(host+"/app:1")), 0)
			if err != nil || !bytes.Equal(got, layer) {
				t.Errorf("%d bytes and %v", len(got), err)
			}
			if asked.Load() < 2 {
				t.Error("the line did not break")
			}
		})
	}
}

func TestLayersThatDoNotCome(t *testing.T) {
	defer source.Hurry(10 * time.Second)()
	const size = 1 << 20
	s, layer := oneLayer(t, size)
	host := s.serve(t)
	for _, c := range []struct {
		name string
		f    func(w http.ResponseWriter, r *http.Request)
		want *fault.Code
		says string
	}{
		{"the line breaks each time", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(size))
			_, _ = w.Write(layer[:10])
			cut(w)
		}, fault.RegistryDown, "10 of 1048576"},
		{"the registry lacks it", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }, fault.ImageInvalid, "404"},
		{"the registry hides it", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, fault.ImageDenied, "403"},
		{"fewer bytes", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(layer[:10]) }, fault.LayerDigest, "10 bytes"},
		{"fewer bytes than anybody said", func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			_, _ = w.Write(layer[:10])
		}, fault.LayerDigest, "ends after 10"},
		{"more bytes", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(append(layer[:size:size], 1)) }, fault.LayerDigest, ""},
		{"more bytes than anybody said", func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			_, _ = w.Write(append(layer[:size:size], 1))
		}, fault.LayerDigest, "larger"},
		{"other bytes", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, size)) }, fault.LayerDigest, "its bytes have sha256:"},
		{"other bytes after a break", func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") == "" {
				w.Header().Set("Content-Length", strconv.Itoa(size))
				_, _ = w.Write(layer[:size/2])
				cut(w)
			}
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", size/2, size-1, size))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(make([]byte, size/2))
		}, fault.LayerDigest, "its bytes have sha256:"},
		{"bytes from elsewhere after a break", func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") == "" {
				w.Header().Set("Content-Length", strconv.Itoa(size))
				_, _ = w.Write(layer[:size/2])
				cut(w)
			}
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 5-%d/%d", size-1, size))
			w.WriteHeader(http.StatusPartialContent)
		}, fault.RegistryDown, "it sent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.ofLayer(layer, c.f)
			_, err := read(t, resolve(t, request(host+"/app:1")), 0)
			refused(t, err, c.want, c.says)
			if err != nil && (!strings.Contains(err.Error(), "layer 1") || !strings.Contains(err.Error(), sumOf(layer))) {
				t.Errorf("the layer is not named: %v", err)
			}
			if n := s.asked(sumOf(layer)); n > 40 {
				t.Errorf("it was asked %d times", n)
			}
		})
	}
}

func TestASilentRegistry(t *testing.T) {
	defer source.Hurry(200 * time.Millisecond)()
	s, layer := oneLayer(t, 1000)
	host := s.serve(t)
	for _, sent := range []int{0, 10} {
		s.ofLayer(layer, func(w http.ResponseWriter, r *http.Request) {
			if sent > 0 {
				_, _ = w.Write(layer[:sent])
				_ = http.NewResponseController(w).Flush()
			}
			<-r.Context().Done()
		})
		_, err := read(t, resolve(t, request(host+"/app:1")), 0)
		refused(t, err, fault.RegistryDown, "no byte for 200ms")
	}
}

// Who reads slowly is not taken for a silent registry, and who goes is not kept.
func TestTheReadersOwnPace(t *testing.T) {
	defer source.Hurry(500 * time.Millisecond)()
	s, layer := oneLayer(t, 1<<20)
	host := s.serve(t)
	goOn := make(chan struct{})
	s.ofLayer(layer, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(layer[:1<<19])
		_ = http.NewResponseController(w).Flush()
		select {
		case <-goOn:
			_, _ = w.Write(layer[1<<19:])
		case <-r.Context().Done():
		}
	})
	im := resolve(t, request(host+"/app:1"))
	r, err := im.Open(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 1<<19)
	if _, err := io.ReadFull(r, first); err != nil {
		t.Fatal(err)
	}
	source.Idle() // longer than a registry may be silent
	close(goOn)
	if rest, err := io.ReadAll(r); err != nil || len(rest) != 1<<19 {
		t.Errorf("%d bytes and %v", len(rest), err)
	}
	if err := errors.Join(r.Close(), r.Close()); err != nil {
		t.Error(err)
	}
	if n := s.asked(sumOf(layer)); n != 1 {
		t.Errorf("it was asked %d times", n)
	}

	goOn = make(chan struct{})
	why := errors.New("left")
	ctx, leave := context.WithCancelCause(t.Context())
	if r, err = im.Open(ctx, 0); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadFull(r, first); err != nil {
		t.Fatal(err)
	}
	leave(why)
	if _, err := io.ReadAll(r); !errors.Is(err, why) {
		t.Errorf("who left got %v", err)
	}
}
