package rootfs

import (
	"bytes"
	"encoding/json"
	"io"

	"github.com/paddock-dev/paddock/internal/fault"
)

// ReceiptVersion changes when a field changes its meaning.
const ReceiptVersion = 1

// Receipt says what an image was made of, what was kept out of it, what was
// put in, and what its bytes are. Equal input gives an equal receipt: it has
// no time and no machine in it.
type Receipt struct {
	Version    int    `json:"version"`
	Format     string `json:"format"`    // of the writer
	Reference  string `json:"reference"` // as asked
	Digest     string `json:"digest"`    // of the platform's manifest
	ContentKey string `json:"content_key"`
	Policy     string `json:"policy"`

	Layers []LayerReceipt `json:"layers"`
	Counts Counts         `json:"counts"`

	Injected []Injected `json:"injected"`
	// NotWritten says what an injection left out, and why.
	NotWritten []string `json:"not_written"`

	SizeBytes  int64    `json:"size_bytes"`
	FreeBytes  int64    `json:"free_bytes"` // within the image
	Inodes     int64    `json:"inodes"`
	UUID       string   `json:"uuid"`
	Compacted  bool     `json:"compacted"` // made anew without the gaps of replaced files
	SHA256     string   `json:"sha256"`
	ChunkBytes int64    `json:"chunk_bytes"`
	Chunks     []string `json:"chunks"` // see Sums
}

// LayerReceipt is one layer, base first.
type LayerReceipt struct {
	Digest       string `json:"digest"`        // of the bytes that travel
	DiffID       string `json:"diff_id"`       // of the archive within
	SizeBytes    int64  `json:"size_bytes"`    // as it travels
	ArchiveBytes int64  `json:"archive_bytes"` // of the archive
	Entries      int64  `json:"entries"`
}

// Injected is one file that was put in.
type Injected struct {
	Path string `json:"path"` // links resolved
	What string `json:"what"` // guest, ca, directory
	How  string `json:"how"`  // created, replaced, appended, present
}

// WriteTo writes the receipt as JSON, always with the same bytes.
func (r *Receipt) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return 0, err
	}
	return b.WriteTo(w)
}

// maxReceipt bounds the receipts that are read: one of 1 TiB has 150 MB.
const maxReceipt = 256 << 20

// ReadReceipt reads what WriteTo wrote. It answers fault.InvalidInput for
// anything else.
func ReadReceipt(r io.Reader) (*Receipt, error) {
	var out Receipt
	d := json.NewDecoder(io.LimitReader(r, maxReceipt))
	if err := d.Decode(&out); err != nil {
		return nil, fault.Wrap(fault.InvalidInput, err, "receipt of an image")
	}
	if out.Version != ReceiptVersion {
		return nil, fault.New(fault.InvalidInput, "receipt of an image: version %d, this program reads %d", out.Version, ReceiptVersion)
	}
	return &out, nil
}
