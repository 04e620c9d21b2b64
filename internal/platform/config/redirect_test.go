package config_test

import (
	"slices"
	"testing"

	"github.com/paddock-dev/paddock/internal/platform/config"
)

func TestRedirects(t *testing.T) {
	for endpoint, want := range map[string][]string{
		"":                      {"10.0.0.1:9000"},
		"S3.local:9000":         {"10.0.0.1:9000", "s3.local:9000", "b.s3.local:9000"},
		"https://s3.example":    {"10.0.0.1:9000", "s3.example:443", "b.s3.example:443"},
		"http://s3.example/":    {"10.0.0.1:9000", "s3.example:80", "b.s3.example:80"},
		"s3.example":            {"10.0.0.1:9000", "s3.example:80", "b.s3.example:80"},
		"http://[fd00::1]:9000": {"10.0.0.1:9000", "[fd00::1]:9000", "b.[fd00::1]:9000"},
	} {
		c := config.Default()
		c.Cubelet.RedirectTo = []string{"10.0.0.1:9000"}
		c.ArtifactStore.S3.Endpoint, c.ArtifactStore.S3.Bucket = endpoint, "b"
		if got := c.Redirects(); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", endpoint, got, want)
		}
	}
}
