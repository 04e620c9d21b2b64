package guest

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func at(path string) string { return "/files?path=" + url.QueryEscape(path) }

var octets = map[string]string{"Content-Type": "application/octet-stream"}

func TestUploadAndDownload(t *testing.T) {
	b := newBox(t)
	long := "d/" + strings.Repeat(strings.Repeat("x", 200)+"/", 15) + "f"
	for _, c := range []struct{ name, path, full, data string }{
		{"absolute", filepath.Join(b.home, "a"), filepath.Join(b.home, "a"), "text"},
		{"relative", "new/dirs/b", filepath.Join(b.home, "new/dirs/b"), "text"},
		{"tilde", "~/c", filepath.Join(b.home, "c"), "text"},
		{"empty file", "empty", filepath.Join(b.home, "empty"), ""},
		{"not UTF-8", "bad\xff\xfename", filepath.Join(b.home, "bad\xff\xfename"), "text"},
		{"long path", long, filepath.Join(b.home, long), "text"},
		{"dots", "x/../y", filepath.Join(b.home, "y"), "text"},
		{"zero bytes inside", "z", filepath.Join(b.home, "z"), "\x00\x01"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, body, _ := b.call(http.MethodPost, at(c.path), strings.NewReader(c.data), octets)
			want := fmt.Sprintf(`[{"path":%q,"name":%q,"type":"file"}]`, clean(c.full), clean(filepath.Base(c.full)))
			if status != 200 || strings.TrimSpace(body) != want {
				t.Fatalf("upload: %d %s, want %s", status, body, want)
			}
			status, body, h := b.call(http.MethodGet, at(c.path), nil, nil)
			if status != 200 || body != c.data || h.Get("Content-Length") != strconv.Itoa(len(c.data)) {
				t.Errorf("download: %d %q, length %s", status, body, h.Get("Content-Length"))
			}
			for path, mode := range map[string]os.FileMode{c.full: 0o644, filepath.Dir(c.full): 0o755 | os.ModeDir} {
				info, err := os.Stat(path)
				check(t, err)
				if st := info.Sys().(*syscall.Stat_t); info.Mode() != mode || st.Uid != agentUID || st.Gid != agentUID {
					t.Errorf("%s: %v, owner %d:%d", path, info.Mode(), st.Uid, st.Gid)
				}
			}
		})
	}
}

func TestFileRefusals(t *testing.T) {
	b := newBox(t)
	check(t, os.WriteFile(filepath.Join(b.home, "file"), nil, 0o644))
	check(t, syscall.Mkfifo(filepath.Join(b.home, "fifo"), 0o644))
	check(t, os.Symlink("loop", filepath.Join(b.home, "loop")))
	for _, c := range []struct {
		method, path, name string
		status             int
	}{
		{"GET", at("/no/such"), "file_not_found", 404},
		{"GET", at("file/below"), "file_not_found", 404},
		{"GET", at("."), "file_is_directory", 400},
		{"GET", "/files", "file_is_directory", 400},
		{"GET", at("fifo"), "invalid_input", 400},
		{"GET", at("loop"), "invalid_input", 400},
		{"GET", at("a\x00b"), "invalid_input", 400},
		{"GET", at(strings.Repeat("x", 300)), "invalid_input", 400},
		{"GET", at("file") + "&username=stranger", "invalid_input", 401},
		{"POST", at("."), "file_is_directory", 400},
		{"POST", at("fifo"), "invalid_input", 400},
		{"POST", at("file/below"), "invalid_input", 400},
		{"POST", at("file/below/deeper"), "invalid_input", 400},
		{"POST", "/files", "invalid_input", 400},
		{"POST", at("file") + "&username=stranger", "invalid_input", 401},
	} {
		var body io.Reader
		if c.method == "POST" {
			body = strings.NewReader("x")
		}
		status, text, h := b.call(c.method, c.path, body, octets)
		if status != c.status || h.Get(HeaderCode) != c.name || !strings.Contains(text, `"code":`+strconv.Itoa(c.status)) {
			t.Errorf("%s %.60s: %d %s %s, want %d %s", c.method, c.path, status, h.Get(HeaderCode), text, c.status, c.name)
		}
	}
	for header, want := range map[string]int{"application/json": 415, "text/plain": 415} {
		if status, _, _ := b.call("POST", at("file"), strings.NewReader("x"), map[string]string{"Content-Type": header}); status != want {
			t.Errorf("%s: %d", header, status)
		}
	}
}

func TestSymlinksAreFollowed(t *testing.T) {
	b := newBox(t)
	real, link := filepath.Join(b.home, "real"), filepath.Join(b.home, "link")
	check(t, os.WriteFile(real, []byte("old"), 0o600))
	check(t, os.Symlink(real, link))
	if status, body, _ := b.call("POST", at("link"), strings.NewReader("new"), octets); status != 200 {
		t.Fatal(status, body)
	}
	text, err := os.ReadFile(real)
	check(t, err)
	info, err := os.Lstat(link)
	check(t, err)
	if string(text) != "new" || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("%q, %v", text, info.Mode())
	}
	if info, err := os.Stat(real); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a file that was there keeps its mode: %v, %v", info, err)
	}
}

func TestFilesOfProc(t *testing.T) {
	b := newBox(t)
	for _, path := range []string{"/proc/version", "/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled"} {
		want, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // not every kernel has it
		}
		check(t, err)
		status, body, _ := b.call("GET", at(path), nil, nil)
		if status != 200 || len(body) == 0 || body[:7] != string(want[:7]) {
			t.Errorf("%s: %d %q", path, status, body)
		}
	}
	status, body, _ := b.call("GET", at("/proc/kallsyms"), nil, nil) // longer than the first read
	if status != 200 || len(body) < 100<<10 {
		t.Errorf("kallsyms: %d, %d bytes", status, len(body))
	}
}

func TestRangeAndGzip(t *testing.T) {
	b := newBox(t)
	check(t, os.WriteFile(filepath.Join(b.home, "f"), []byte("0123456789"), 0o644))
	if status, body, h := b.call("GET", at("f"), nil, map[string]string{"Range": "bytes=2-4", "Accept-Encoding": "gzip"}); status != 206 || body != "234" || h.Get("Content-Range") != "bytes 2-4/10" {
		t.Errorf("range: %d %q %v", status, body, h)
	}
	if status, _, _ := b.call("GET", at("f"), nil, map[string]string{"Range": "bytes=50-"}); status != 416 {
		t.Errorf("range outside: %d", status)
	}
	status, body, h := b.call("GET", at("f"), nil, map[string]string{"Accept-Encoding": "br, gzip;q=0.5"})
	if status != 200 || h.Get("Content-Encoding") != "gzip" || unzip(t, body) != "0123456789" {
		t.Errorf("gzip: %d %v", status, h)
	}
	for header, want := range map[string]int{"identity;q=0": 406, "*;q=0": 406, "br": 200, "gzip;q=0": 200, "identity;q=0, gzip": 200} {
		if status, _, _ := b.call("GET", at("f"), nil, map[string]string{"Accept-Encoding": header}); status != want {
			t.Errorf("%s: %d, want %d", header, status, want)
		}
	}
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, err := w.Write([]byte("zipped up"))
	check(t, errors.Join(err, w.Close()))
	whole := z.String()
	status, body, _ = b.call("POST", at("g"), strings.NewReader(whole), map[string]string{"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"})
	if text, err := os.ReadFile(filepath.Join(b.home, "g")); status != 200 || err != nil || string(text) != "zipped up" {
		t.Errorf("upload: %d %s, %q %v", status, body, text, err)
	}
	for name, broken := range map[string]string{"cut": whole[:len(whole)-6], "none": "plain text"} {
		status, _, _ = b.call("POST", at(name), strings.NewReader(broken), map[string]string{"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"})
		if _, err := os.Stat(filepath.Join(b.home, name)); status != 400 || !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %d, left behind: %v", name, status, err)
		}
	}
	if status, _, _ = b.call("POST", at("h"), strings.NewReader("x"), map[string]string{"Content-Encoding": "br"}); status != 415 {
		t.Errorf("br: %d", status)
	}
}

func unzip(t *testing.T, s string) string {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(s))
	check(t, err)
	text, err := io.ReadAll(z)
	check(t, err)
	return string(text)
}

// form makes a form of parts; names are put in as they are.
func form(parts ...[2]string) (string, io.Reader) {
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	for _, p := range parts {
		part, _ := w.CreatePart(map[string][]string{"Content-Disposition": {`form-data; name="file"; filename="` + p[0] + `"`}}) // a buffer takes all
		_, _ = part.Write([]byte(p[1]))
	}
	_ = w.Close()
	return w.FormDataContentType(), &body
}

func TestForms(t *testing.T) {
	b := newBox(t)
	kind, body := form([2]string{"sub/one", "1"}, [2]string{filepath.Join(b.home, "two"), "2"})
	status, text, _ := b.call("POST", "/files", body, map[string]string{"Content-Type": kind})
	if status != 200 || !strings.Contains(text, b.home+"/sub/one") || !strings.Contains(text, `"name":"two"`) {
		t.Fatalf("%d %s", status, text)
	}
	for name, want := range map[string]string{"sub/one": "1", "two": "2"} {
		if got, err := os.ReadFile(filepath.Join(b.home, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	kind, body = form([2]string{"ignored", "3"})
	if status, text, _ = b.call("POST", at("three"), body, map[string]string{"Content-Type": kind}); status != 200 || !strings.Contains(text, b.home+"/three") {
		t.Errorf("%d %s", status, text)
	}
	for name, parts := range map[string][][2]string{"twice": {{"same", "1"}, {"same", "2"}}, "no name": {{"", "1"}}, "none": nil} {
		kind, body = form(parts...)
		if status, text, _ := b.call("POST", "/files", body, map[string]string{"Content-Type": kind}); status != 400 {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	if status, _, _ = b.call("POST", "/files", strings.NewReader("junk"), map[string]string{"Content-Type": "multipart/form-data; boundary=b"}); status != 400 {
		t.Errorf("junk: %d", status)
	}
}

// onTmpfs mounts a small file system at a directory of agent's home.
func (b *box) onTmpfs(options string) string {
	b.t.Helper()
	dir := filepath.Join(b.home, "small")
	check(b.t, os.Mkdir(dir, 0o755))
	check(b.t, unix.Mount("tmpfs", dir, "tmpfs", 0, options))
	b.t.Cleanup(func() { check(b.t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func TestFullDisk(t *testing.T) {
	b := newBox(t)
	dir := b.onTmpfs("size=64k,mode=755")
	status, text, h := b.call("POST", at(dir+"/big"), bytes.NewReader(make([]byte, 1<<20)), octets)
	if status != 507 || h.Get(HeaderCode) != "sandbox_disk_full" {
		t.Errorf("%d %s %s", status, text, h.Get(HeaderCode))
	}
	if _, err := os.Stat(dir + "/big"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that was not written whole stays: %v", err)
	}
}

func TestUploadCutOff(t *testing.T) {
	b := newBox(t)
	r, w := io.Pipe()
	go func() {
		_, _ = w.Write(make([]byte, 1000))
		_ = w.CloseWithError(errors.New("the caller breaks off")) // cannot fail
	}()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+at("cut"), r)
	check(t, err)
	if answer, err := http.DefaultClient.Do(request); err == nil {
		_ = answer.Body.Close()
		t.Errorf("status %d", answer.StatusCode)
	}
	eventually(t, "nothing was left", func() bool { _, err := os.Stat(filepath.Join(b.home, "cut")); return errors.Is(err, os.ErrNotExist) })
}

func TestMetadata(t *testing.T) {
	b := newBox(t)
	upload := func(h map[string]string) (int, string) {
		h["Content-Type"] = "application/octet-stream"
		status, text, _ := b.call("POST", at("m"), strings.NewReader("x"), h)
		return status, text
	}
	if status, text := upload(map[string]string{"X-Metadata-Author": "ann", "X-Metadata-Two-Words": "b c"}); status != 200 || !strings.Contains(text, `"metadata":{"author":"ann","two-words":"b c"}`) {
		t.Fatalf("%d %s", status, text)
	}
	if got := metadataOf(filepath.Join(b.home, "m")); len(got) != 2 || got["author"] != "ann" {
		t.Errorf("%v", got)
	}
	if status, text := upload(map[string]string{"X-Metadata-Other": "1"}); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	if got := metadataOf(filepath.Join(b.home, "m")); len(got) != 1 || got["other"] != "1" {
		t.Errorf("it is replaced: %v", got)
	}
	upload(map[string]string{})
	if got := metadataOf(filepath.Join(b.home, "m")); got != nil {
		t.Errorf("it is cleared: %v", got)
	}
	if status, _ := upload(map[string]string{"X-Metadata-" + strings.Repeat("k", 300): "1"}); status != 400 {
		t.Errorf("a long key: %d", status)
	}
}

func TestTokenAndSignatures(t *testing.T) {
	b := newBox(t)
	check(t, os.WriteFile(filepath.Join(b.home, "f"), []byte("secret"), 0o644))
	post := func(body, shown string) int {
		status, _, _ := b.call("POST", "/init", strings.NewReader(body), map[string]string{"X-Access-Token": shown})
		return status
	}
	for _, c := range []struct {
		body, shown string
		want        int
	}{
		{`{"accessToken":"tok"}`, "", 204},
		{`{"accessToken":"tok","envVars":{"K":"v"}}`, "", 204},
		{`{"accessToken":"other"}`, "", 401},
		{`{}`, "", 401},
		{`{"accessToken":"next"}`, "tok", 204},
		{`{"accessToken":"tok"}`, "next", 204},
		{`not json`, "tok", 400},
		{`{"envVars":{"A=B":"v"}}`, "tok", 400},
		{`{"defaultUser":"stranger"}`, "tok", 401},
		{`{"volumeMounts":[{}]}`, "tok", 400},
		{``, "tok", 204},
	} {
		if got := post(c.body, c.shown); got != c.want {
			t.Errorf("init %s with %q: %d, want %d", c.body, c.shown, got, c.want)
		}
	}
	future, past := strconv.FormatInt(time.Now().Unix()+60, 10), strconv.FormatInt(time.Now().Unix()-60, 10)
	signed := func(op, expiration string) string {
		q := at("f") + "&username=agent&signature=" + url.QueryEscape(sign("f", op, "agent", "tok", expiration))
		if expiration != "" {
			q += "&signature_expiration=" + expiration
		}
		return q
	}
	for _, c := range []struct {
		method, path, token string
		status              int
		message             string
	}{
		{"GET", "/health", "", 204, ""},
		{"GET", "/envs", "", 401, "access token"},
		{"GET", "/envs", "bad", 401, "access token"},
		{"GET", "/envs", "tok", 200, `"K":"v"`},
		{"GET", "/metrics", "", 401, ""},
		{"POST", "/process.Process/List", "", 401, ""},
		{"GET", at("f"), "", 401, "missing signature query parameter"},
		{"GET", at("f"), "bad", 401, "does not match"},
		{"GET", at("f"), "tok", 200, "secret"},
		{"GET", signed(opRead, ""), "", 200, "secret"},
		{"GET", signed(opRead, future), "", 200, "secret"},
		{"GET", signed(opRead, past), "", 401, "signature is already expired"},
		{"GET", signed(opWrite, ""), "", 401, "invalid signature"},
		{"GET", signed(opRead, "soon"), "", 401, "signature is already expired"},
		{"POST", signed(opRead, ""), "", 401, "invalid signature"},
		{"POST", signed(opWrite, ""), "", 200, ""},
	} {
		var body io.Reader
		if c.method == "POST" {
			body = strings.NewReader("secret")
		}
		status, text, _ := b.call(c.method, c.path, body, map[string]string{"X-Access-Token": c.token})
		if status != c.status || !strings.Contains(text, c.message) {
			t.Errorf("%s %s with %q: %d %s, want %d %q", c.method, c.path, c.token, status, text, c.status, c.message)
		}
	}
}

// The value is what sha256sum and base64 of coreutils make of the same text.
func TestSignatureForm(t *testing.T) {
	if got := sign("/a b", opRead, "user", "tok", "17"); got != wantSignature {
		t.Errorf("got %s", got)
	}
}

func TestMetricsAndOrigins(t *testing.T) {
	b := newBox(t)
	status, text, _ := b.call("GET", "/metrics", nil, nil)
	for _, key := range []string{"ts", "cpu_count", "cpu_used_pct", "mem_total", "mem_used", "mem_cache", "mem_total_mib", "mem_used_mib", "disk_used", "disk_total"} {
		if status != 200 || !strings.Contains(text, `"`+key+`":`) || strings.Contains(text, `"`+key+`":0`) && strings.Contains(key, "total") {
			t.Errorf("%s: %d %s", key, status, text)
		}
	}
	if status, _, h := b.call("OPTIONS", "/files", nil, map[string]string{"Origin": "http://x", "Access-Control-Request-Headers": "x-metadata-a"}); status != 204 || h.Get("Access-Control-Allow-Origin") != "*" || !strings.Contains(h.Get("Access-Control-Allow-Headers"), "x-metadata-a") {
		t.Errorf("%d %v", status, h)
	}
}

const wantSignature = "v1_6H0Wwt3ZQPGOCWbYoX81AgcUHF7Mgirw1jeh2qaJcu4"
