package artifact

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	// ManifestVersion changes when a field changes its meaning.
	ManifestVersion = 1
	// ManifestType is the media type of a manifest: no refusal has it.
	ManifestType = "application/vnd.paddock.chunks+json"

	smallestChunk = 4 << 10
	largestChunk  = 16 << 20
	maxChunks     = 1 << 20 // 512 GiB
	zeroWord      = "zeros*"
)

// Manifest says of which chunks an artifact's bytes are, so that a host fetches
// only those that it lacks. It is a plan: whoever puts them together proves the
// whole by SHA256, unless the manifest's own sha256 came from whom the whole's
// would have come from.
type Manifest struct {
	Version    int    `json:"version"`
	SHA256     string `json:"sha256"`
	SizeBytes  int64  `json:"size_bytes"`
	ChunkBytes int64  `json:"chunk_bytes"`
	// Chunks are the sha256 of each ChunkBytes bytes, in hex; the last may be
	// shorter. Chunks in a row that hold only zeros are one word: zeros*N.
	Chunks []string `json:"chunks"`
}

// Encode returns the manifest as it travels, the same for the same chunks, and
// the sha256 of that in hex.
func (m Manifest) Encode() (b []byte, sha string, err error) {
	if b, err = json.Marshal(m); err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(b)
	return b, hex.EncodeToString(sum[:]), nil
}

// Sum is the sha256 of a chunk; the zero Sum is that of a chunk of zeros.
type Sum [32]byte

// Zero reports whether the chunk holds only zeros.
func (s Sum) Zero() bool { return s == Sum{} }

// ReadManifest reads a manifest and checks that its parts fit each other:
// fault.InvalidInput.
func ReadManifest(b []byte) (*Manifest, []Sum, error) {
	var m Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, nil, fault.Wrap(fault.InvalidInput, err, "chunk manifest")
	}
	if m.Version != ManifestVersion {
		return nil, nil, fault.New(fault.InvalidInput, "chunk manifest: version %d, this program reads %d", m.Version, ManifestVersion)
	}
	sums, err := m.Sums()
	return &m, sums, err
}

// Sums returns the sum of each chunk.
func (m *Manifest) Sums() ([]Sum, error) {
	if m.ChunkBytes < smallestChunk || m.ChunkBytes > largestChunk || m.ChunkBytes%smallestChunk != 0 || m.SizeBytes <= 0 {
		return nil, fault.New(fault.InvalidInput, "chunk manifest: %d bytes in chunks of %d", m.SizeBytes, m.ChunkBytes)
	}
	want := (m.SizeBytes-1)/m.ChunkBytes + 1
	if want > maxChunks {
		return nil, fault.New(fault.InvalidInput, "chunk manifest: %d chunks, at most %d are read", want, maxChunks)
	}
	var sums []Sum
	for i, word := range m.Chunks {
		n := int64(1)
		var s Sum
		if count, ok := strings.CutPrefix(word, zeroWord); ok {
			var err error
			if n, err = strconv.ParseInt(count, 10, 64); err != nil || n < 1 {
				return nil, fault.New(fault.InvalidInput, "chunk manifest: word %d is %.80q", i, word)
			}
		} else if b, err := hex.DecodeString(word); err != nil || copy(s[:], b) != len(s) || len(b) != len(s) || s.Zero() {
			return nil, fault.New(fault.InvalidInput, "chunk manifest: word %d is %.80q", i, word)
		}
		if n > want-int64(len(sums)) {
			return nil, fault.New(fault.InvalidInput, "chunk manifest: more than %d chunks", want)
		}
		sums = append(sums, make([]Sum, n)...)
		sums[len(sums)-1] = s
	}
	if int64(len(sums)) != want {
		return nil, fault.New(fault.InvalidInput, "chunk manifest: %d chunks, %d bytes have %d", len(sums), m.SizeBytes, want)
	}
	return sums, nil
}
