package service

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

const registryConfig = `version: 0.1
log:
  accesslog:
    disabled: true
  level: warn
storage:
  filesystem:
    rootdirectory: %s
  delete:
    enabled: true
http:
  addr: %s
  net: tcp
`

// Registry returns host:port of a fresh, empty container registry that speaks
// plain HTTP and lets everybody in.
func Registry(tb testing.TB) (hostport string) {
	tb.Helper()
	server, err := program("docker-registry")
	if err != nil {
		tb.Fatal(err)
	}
	command := func(dir string, port int) ([]string, []string, error) {
		file := filepath.Join(dir, "config.yml")
		text := fmt.Sprintf(registryConfig, filepath.Join(dir, "data"), address(port))
		return nil, []string{server, "serve", file}, os.WriteFile(file, []byte(text), 0o600)
	}
	return run(tb, "registry", command, func(ctx context.Context, _ string, port int) error {
		return get(ctx, "http://"+address(port)+"/v2/")
	})
}

// get asks for url and wants a 200.
func get(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.Join(fmt.Errorf("%s answered %s", url, resp.Status), resp.Body.Close())
	}
	return resp.Body.Close()
}
