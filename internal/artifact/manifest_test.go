package artifact_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/fault"
)

func TestManifest(t *testing.T) {
	word := strings.Repeat("ab", 32)
	good := artifact.Manifest{Version: 1, SHA256: word, SizeBytes: 5*4096 + 1, ChunkBytes: 4096, Chunks: []string{word, "zeros*3", word, "zeros*1"}}
	for name, c := range map[string]struct {
		change func(*artifact.Manifest)
		ok     bool
	}{
		"good":              {func(*artifact.Manifest) {}, true},
		"too many zeros":    {func(m *artifact.Manifest) { m.Chunks[3] = "zeros*2" }, false},
		"too few":           {func(m *artifact.Manifest) { m.Chunks = m.Chunks[:3] }, false},
		"none":              {func(m *artifact.Manifest) { m.Chunks = nil }, false},
		"short sum":         {func(m *artifact.Manifest) { m.Chunks[0] = word[2:] }, false},
		"long sum":          {func(m *artifact.Manifest) { m.Chunks[0] += "00" }, false},
		"no hex":            {func(m *artifact.Manifest) { m.Chunks[0] = "zz" + word[2:] }, false},
		"sum of no bytes":   {func(m *artifact.Manifest) { m.Chunks[0] = strings.Repeat("0", 64) }, false},
		"zeros below one":   {func(m *artifact.Manifest) { m.Chunks[1] = "zeros*-1" }, false},
		"zeros beyond all":  {func(m *artifact.Manifest) { m.Chunks[1] = "zeros*9223372036854775807" }, false},
		"odd chunks":        {func(m *artifact.Manifest) { m.ChunkBytes = 4097 }, false},
		"huge chunks":       {func(m *artifact.Manifest) { m.ChunkBytes = 1 << 40 }, false},
		"no bytes":          {func(m *artifact.Manifest) { m.SizeBytes = 0 }, false},
		"more than is read": {func(m *artifact.Manifest) { m.SizeBytes, m.Chunks = 1<<60, []string{"zeros*281474976710656"} }, false},
		"another version":   {func(m *artifact.Manifest) { m.Version = 2 }, false},
	} {
		m := good
		m.Chunks = append([]string(nil), good.Chunks...)
		c.change(&m)
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		_, sums, err := artifact.ReadManifest(b)
		if c.ok != (err == nil) || err != nil && !errors.Is(err, fault.InvalidInput) {
			t.Errorf("%s: %v", name, err)
		}
		if c.ok && (len(sums) != 6 || sums[0].Zero() || !sums[1].Zero() || !sums[3].Zero() || sums[4] != sums[0] || !sums[5].Zero()) {
			t.Errorf("%s: %v", name, sums)
		}
	}
	if _, _, err := artifact.ReadManifest([]byte(`{"version":1`)); !errors.Is(err, fault.InvalidInput) {
		t.Errorf("cut off: %v", err)
	}
}
