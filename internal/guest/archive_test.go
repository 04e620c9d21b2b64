package guest

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func archiveAt(path string) string { return "/archive?path=" + url.QueryEscape(path) }

// tarOf is an archive of files, and of links where the text begins with ->.
func tarOf(t *testing.T, entries ...[2]string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e[0], Mode: 0o640, Uid: 7, Gid: 8, Size: int64(len(e[1]))}
		if to, ok := strings.CutPrefix(e[1], "->"); ok {
			h = &tar.Header{Typeflag: tar.TypeSymlink, Name: e[0], Linkname: to, Uid: 7, Gid: 8}
		}
		check(t, w.WriteHeader(h))
		if h.Size > 0 {
			_, err := w.Write([]byte(e[1]))
			check(t, err)
		}
	}
	check(t, w.Close())
	return b.String()
}

func TestDirectoriesGoInAndOut(t *testing.T) {
	b := newBox(t)
	for _, c := range []struct {
		name, query string
		uid         uint32
	}{{"as in the archive", "", 7}, {"of a user", "&username=agent", agentUID}} {
		t.Run(c.name, func(t *testing.T) {
			to := "in/" + strings.ReplaceAll(c.name, " ", "-")
			status, text, _ := b.call(http.MethodPut, archiveAt(to)+c.query, strings.NewReader(tarOf(t, [2]string{"d/f", "text"}, [2]string{"l", "->d/f"})), nil)
			if status != http.StatusNoContent {
				t.Fatal(status, text)
			}
			for _, name := range []string{"d/f", "l"} {
				info, err := os.Lstat(filepath.Join(b.home, to, name))
				check(t, err)
				if st := info.Sys().(*syscall.Stat_t); st.Uid != c.uid {
					t.Errorf("%s belongs to %d", name, st.Uid)
				}
			}
		})
	}
	status, text, h := b.call(http.MethodGet, archiveAt("in"), nil, nil)
	if status != http.StatusOK || h.Get("Content-Type") != "application/x-tar" {
		t.Fatal(status, text, h)
	}
	// What tar itself makes of it.
	out := t.TempDir()
	c := exec.Command("tar", "-xpf", "-", "--same-owner", "-C", out)
	c.Stdin = strings.NewReader(text)
	if said, err := c.CombinedOutput(); err != nil {
		t.Fatal(err, string(said))
	}
	if same, err := exec.Command("diff", "-r", "--no-dereference", filepath.Join(b.home, "in"), out).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, same)
	}
	if info, err := os.Lstat(filepath.Join(out, "as-in-the-archive/d/f")); err != nil || info.Mode() != 0o640 || info.Sys().(*syscall.Stat_t).Gid != 8 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestArchiveRefusals(t *testing.T) {
	b := newBox(t)
	check(t, os.WriteFile(filepath.Join(b.home, "file"), []byte("x"), 0o644))
	check(t, os.Mkdir(filepath.Join(b.home, "there"), 0o755))
	good := tarOf(t, [2]string{"f", "x"})
	for _, c := range []struct {
		method, path, body, name string
		status                   int
	}{
		{"GET", archiveAt("/no/such"), "", "file_not_found", 404},
		{"GET", archiveAt("file"), "", "invalid_input", 400},
		{"GET", "/archive", "", "invalid_input", 400},
		{"GET", archiveAt("there") + "&username=stranger", "", "invalid_input", 401},
		{"PUT", archiveAt("file"), good, "invalid_input", 400},
		{"PUT", "/archive", good, "invalid_input", 400},
		{"PUT", archiveAt("there") + "&username=stranger", good, "invalid_input", 401},
		{"PUT", archiveAt("new"), "no archive", "archive_refused", 400},
		{"PUT", archiveAt("new"), good[:700], "archive_refused", 400},
		{"PUT", archiveAt("new"), tarOf(t, [2]string{"a", "x"}, [2]string{"../out", "x"}), "archive_refused", 400},
		{"PUT", archiveAt("new"), tarOf(t, [2]string{"l", "->" + b.home}, [2]string{"l/out", "x"}), "archive_refused", 400},
		{"PUT", archiveAt("there"), tarOf(t, [2]string{"l", "->.."}, [2]string{"l/out", "x"}), "archive_refused", 400},
	} {
		status, text, h := b.call(c.method, c.path, strings.NewReader(c.body), nil)
		if status != c.status || h.Get(HeaderCode) != c.name {
			t.Errorf("%s %s: %d %s %s, want %d %s", c.method, c.path, status, h.Get(HeaderCode), text, c.status, c.name)
		}
	}
	for _, name := range []string{"new", "out"} {
		if _, err := os.Lstat(filepath.Join(b.home, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was left behind: %v", name, err)
		}
	}
}

// A tree that cannot be read to its end must not look like a whole one.
func TestAnArchiveThatBreaksOffIsSeen(t *testing.T) {
	b := newBox(t)
	check(t, os.WriteFile(filepath.Join(b.home, "f"), nil, 0o644))
	check(t, os.Truncate(filepath.Join(b.home, "f"), 1<<30)) // longer than what waits on the way
	a, err := http.Get(b.url + archiveAt("."))
	check(t, err)
	defer a.Body.Close()
	_, err = io.CopyN(io.Discard, a.Body, 1<<20)
	check(t, err)
	check(t, os.Truncate(filepath.Join(b.home, "f"), 1<<20))
	if n, err := io.Copy(io.Discard, a.Body); err == nil {
		t.Errorf("another %d bytes came, and then an end", n)
	}
}

func TestArchivesNeedTheToken(t *testing.T) {
	b := newBox(t)
	check(t, b.g.apply(initRequest{AccessToken: new("secret")}, ""))
	for _, method := range []string{"GET", "PUT"} {
		for header, want := range map[string]int{"": 401, "wrong": 401} {
			if status, _, _ := b.call(method, archiveAt("~"), nil, map[string]string{"X-Access-Token": header}); status != want {
				t.Errorf("%s with %q: %d", method, header, status)
			}
		}
	}
	if status, _, _ := b.call("POST", "/files/compose", strings.NewReader("{}"), nil); status != 401 {
		t.Errorf("compose: %d", status)
	}
	if status, _, _ := b.call("GET", archiveAt("~"), nil, map[string]string{"X-Access-Token": "secret"}); status != 200 {
		t.Errorf("with the token: %d", status)
	}
}

func TestCompose(t *testing.T) {
	b := newBox(t)
	for i, text := range []string{"one ", "two ", "three"} {
		check(t, os.WriteFile(filepath.Join(b.home, fmt.Sprint("part", i)), []byte(text), 0o600))
	}
	post := func(body string) (int, string, http.Header) {
		return b.call("POST", "/files/compose", strings.NewReader(body), map[string]string{"Content-Type": "application/json"})
	}
	for _, c := range []struct {
		body, name string
		status     int
	}{
		{`{`, "invalid_input", 400},
		{`{"destination":"x"}`, "invalid_input", 400},
		{`{"source_paths":["part0"]}`, "invalid_input", 400},
		{`{"source_paths":["part0","none"],"destination":"new/x"}`, "file_not_found", 404},
		{`{"source_paths":["part0","/etc"],"destination":"x"}`, "file_is_directory", 400},
		{`{"source_paths":["part0"],"destination":"."}`, "invalid_input", 400},
		{`{"source_paths":["part0"],"destination":"x","username":"stranger"}`, "invalid_input", 401},
	} {
		if status, text, h := post(c.body); status != c.status || h.Get(HeaderCode) != c.name {
			t.Errorf("%s: %d %s %s", c.body, status, h.Get(HeaderCode), text)
		}
	}
	left, err := filepath.Glob(filepath.Join(b.home, "*/.compose-*"))
	check(t, err)
	status, text, _ := post(`{"source_paths":["part0","~/part1","part2","part0"],"destination":"new/dir/whole"}`)
	if want := fmt.Sprintf(`[{"path":%q,"name":"whole","type":"file"}]`, filepath.Join(b.home, "new/dir/whole")); status != 200 || "["+strings.TrimSpace(text)+"]" != want {
		t.Errorf("%d %s, want %s", status, text, want)
	}
	whole := filepath.Join(b.home, "new/dir/whole")
	got, err := os.ReadFile(whole)
	check(t, err)
	info, err := os.Stat(whole)
	check(t, err)
	if st := info.Sys().(*syscall.Stat_t); string(got) != "one two three"+"one " || st.Uid != agentUID || info.Mode() != 0o644 {
		t.Errorf("%q, %d, %v", got, st.Uid, info.Mode())
	}
	parts, err := filepath.Glob(filepath.Join(b.home, "part*"))
	check(t, err)
	if len(parts)+len(left) > 0 {
		t.Errorf("left: %v, %v", parts, left)
	}
	// A part may be what becomes the whole.
	check(t, os.WriteFile(filepath.Join(b.home, "more"), []byte("."), 0o600))
	if status, text, _ := post(`{"source_paths":["new/dir/whole","more"],"destination":"new/dir/whole"}`); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	if got, err := os.ReadFile(whole); err != nil || string(got) != "one two threeone ." {
		t.Errorf("%q, %v", got, err)
	}
}
