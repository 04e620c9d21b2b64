package images_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/artifact"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/fail"
)

// changed is the next version of an image.
func changed(one []byte) []byte {
	two := slices.Clone(one)
	copy(two[9*chunk+100:], "another version")
	copy(two[20*chunk:], one[10*chunk:12*chunk]) // moved
	return two
}

// A host that has an old version fetches what changed; chunks of zeros are
// holes, and a chunk that is there twice travels once.
func TestOnlyWhatIsMissingTravels(t *testing.T) {
	one := picture(1, 40)
	two := changed(one)
	h := newHolder(t, t.TempDir())
	o := newOrigin(t, one)
	got, err := h.ensure(o.wanted(id))
	check(t, err)
	if want := missing(one) + int64(len(o.manifest)); got.Wire != want || got.Local != 0 {
		t.Errorf("the first: %+v, want %d", got, want)
	}
	h.has(id, one)
	var s unix.Stat_t
	check(t, unix.Stat(h.Path(id), &s))
	if room, most := s.Blocks*512, missing(one)+2*chunk; room > most {
		t.Errorf("it takes %d bytes of the disk, at most %d are no zeros", room, most)
	}
	next := newOrigin(t, two)
	got, err = h.ensure(next.wanted(otherID))
	check(t, err)
	if want := missing(two, one); got.Wire != want+int64(len(next.manifest)) || next.served() != want || got.Local == 0 {
		t.Errorf("the second: %+v and %d served, want %d", got, next.served(), want)
	}
	h.has(otherID, two)
	h.has(id, one)
	if got, err = h.ensure(next.wanted(otherID)); err != nil || got.Wire != 0 {
		t.Errorf("held: %+v, %v", got, err)
	}
	check(t, h.Remove(id))
	check(t, h.Remove(otherID))
	if left := h.files(); left != "" {
		t.Errorf("left: %s", left)
	}
}

// What a host holds may have gone bad: it is compared, not believed.
func TestADamagedImageIsNoSource(t *testing.T) {
	one := picture(1, 40)
	h := newHolder(t, t.TempDir())
	_, err := h.ensure(newOrigin(t, one).wanted(id))
	check(t, err)
	f, err := os.OpenFile(h.Path(id), os.O_WRONLY, 0)
	check(t, err)
	_, err = f.WriteAt([]byte("rust"), chunk)
	check(t, errors.Join(err, f.Close()))
	two := changed(one)
	_, err = h.ensure(newOrigin(t, two).wanted(otherID))
	check(t, err)
	h.has(otherID, two)
}

// A manifest is a plan and no proof. One that will do for nothing costs time
// and no more.
func TestManifestsOfNoUse(t *testing.T) {
	b := picture(1, 20)
	with := func(change func(*artifact.Manifest)) []byte {
		m := manifestOf(b)
		change(&m)
		out, err := json.Marshal(m)
		check(t, err)
		return out
	}
	whole := with(func(*artifact.Manifest) {})
	for name, manifest := range map[string][]byte{
		"there is none":      nil,
		"truncated":          whole[:len(whole)/2],
		"no JSON":            []byte("<html>"),
		"of other bytes":     with(func(m *artifact.Manifest) { m.SHA256 = sumOf(nil) }),
		"of another size":    with(func(m *artifact.Manifest) { m.SizeBytes++ }),
		"too few chunks":     with(func(m *artifact.Manifest) { m.Chunks = m.Chunks[1:] }),
		"too many chunks":    with(func(m *artifact.Manifest) { m.Chunks = append(m.Chunks, "zeros*1000000") }),
		"no zeros":           with(func(m *artifact.Manifest) { m.Chunks[2] = "zeros*0" }),
		"endless zeros":      with(func(m *artifact.Manifest) { m.Chunks[2] = "zeros*9223372036854775807" }),
		"no sum":             with(func(m *artifact.Manifest) { m.Chunks[0] = "ff" }),
		"chunks of nothing":  with(func(m *artifact.Manifest) { m.ChunkBytes = 0 }),
		"a newer version":    with(func(m *artifact.Manifest) { m.Version++ }),
		"a wrong sum":        with(func(m *artifact.Manifest) { m.Chunks[4] = sumOf([]byte("x")) }),
		"zeros that are not": with(func(m *artifact.Manifest) { m.Chunks[4] = "zeros*1" }),
		"in another order":   with(func(m *artifact.Manifest) { m.Chunks[0], m.Chunks[1] = m.Chunks[1], m.Chunks[0] }),
	} {
		try := func(t *testing.T, known bool) {
			h := newHolder(t, t.TempDir())
			o := newOrigin(t, b)
			o.manifest = manifest
			if !known {
				o.said = ""
			}
			_, err := h.ensure(o.wanted(id))
			check(t, err)
			h.has(id, b)
			if got := h.files(); got != ".ext4 .json" {
				t.Errorf("there is %s", got)
			}
			// And bytes that are not those that were asked for are never held.
			r := o.wanted(otherID)
			r.Sha256 = sumOf([]byte("others"))
			if _, err := h.ensure(r); !errors.Is(err, fault.ArtifactCorrupt) {
				t.Errorf("other bytes: %v", err)
			}
			if got := h.files(); got != ".ext4 .json" {
				t.Errorf("there is %s", got)
			}
		}
		t.Run(name, func(t *testing.T) { try(t, false) })
		t.Run(name+", another is meant", func(t *testing.T) { try(t, true) })
	}
}

// The sums of all chunks may be right and the whole another one: then nothing
// is held, and what was asked for is what counts.
func TestTheWholeIsProven(t *testing.T) {
	b, other := picture(1, 20), picture(2, 20)
	for _, said := range []string{"", sumOf([]byte("the manifest of b"))} {
		h := newHolder(t, t.TempDir())
		o := newOrigin(t, other) // its bytes fit its chunks
		m := manifestOf(other)
		m.SHA256 = sumOf(b)
		var err error
		o.manifest, err = json.Marshal(m)
		check(t, err)
		r := o.wanted(id)
		r.Sha256, r.ManifestSha256 = sumOf(b), said
		if _, err := h.ensure(r); !errors.Is(err, fault.ArtifactCorrupt) {
			t.Errorf("got %v", err)
		}
		if got := h.files(); got != "" {
			t.Errorf("there is %s", got)
		}
	}
}

// What was verified when a transfer broke off is not fetched again, neither by
// this process nor by the next.
func TestVerifiedChunksStay(t *testing.T) {
	for name, same := range map[string]bool{"same process": true, "next process": false} {
		t.Run(name, func(t *testing.T) {
			b := picture(1, 400)
			dir := t.TempDir()
			h := newHolder(t, dir)
			o := newOrigin(t, b)
			disarm := fail.Arm("cubelet.artifact.chunk", "error@200")
			_, err := h.ensure(o.wanted(id))
			disarm()
			if !errors.Is(err, fail.ErrInjected) {
				t.Fatalf("got %v", err)
			}
			// A failure of ours leaves nothing; a caller that goes leaves chunks.
			if got := h.files(); got != "" {
				t.Fatalf("there is %s", got)
			}
			ctx, leave := context.WithCancel(t.Context())
			var once sync.Once
			o.set(func(o *origin) {
				o.sent = 0
				o.watch = func(string) {
					if o.served() > int64(len(b)/2) {
						once.Do(leave)
					}
				}
			})
			if _, err := h.Ensure(ctx, o.wanted(id)); !errors.Is(err, context.Canceled) {
				t.Fatalf("got %v", err)
			}
			h.Wait()
			if len(h.parts()) != 1 {
				t.Fatalf("there is %s", h.files())
			}
			if !same {
				h = newHolder(t, dir)
			}
			// Another store, since what was broken off may still be sent by the first.
			rest := newOrigin(t, b)
			got, err := h.ensure(rest.wanted(id))
			check(t, err)
			h.has(id, b)
			if again := got.Wire - int64(len(rest.manifest)); again != rest.served() || again >= missing(b) {
				t.Errorf("%d bytes travelled again of %d, %d were sent", again, missing(b), rest.served())
			}
		})
	}
}

// Chunks that rotted on the disk meanwhile are fetched again.
func TestResumedChunksAreVerified(t *testing.T) {
	b := picture(1, 60)
	h := newHolder(t, t.TempDir())
	o := newOrigin(t, b)
	part := h.Path(id) + "." + sumOf(b)[:16] + ".part"
	half := slices.Clone(b[:30*chunk])
	copy(half[4*chunk:], "rust")
	check(t, os.WriteFile(part, half, 0o600))
	got, err := h.ensure(o.wanted(id))
	check(t, err)
	h.has(id, b)
	have := slices.Concat(b[:4*chunk], b[5*chunk:30*chunk])
	if want := missing(b, have) + int64(len(o.manifest)); got.Wire != want {
		t.Errorf("%d bytes travelled, want %d", got.Wire, want)
	}
}

// Two artifacts come at once, and share nothing but the line.
func TestTwoArtifactsAtOnce(t *testing.T) {
	one, two := picture(1, 100), picture(2, 100)
	h := newHolder(t, t.TempDir())
	first, second := newOrigin(t, one), newOrigin(t, two)
	// Each waits for the other's first request: in turn they would never end.
	var both sync.WaitGroup
	both.Add(2)
	for _, o := range []*origin{first, second} {
		var once sync.Once
		o.watch = func(string) { once.Do(both.Done); both.Wait() }
	}
	var group sync.WaitGroup
	group.Go(func() {
		if _, err := h.ensure(first.wanted(id)); err != nil {
			t.Error(err)
		}
	})
	group.Go(func() {
		if _, err := h.ensure(second.wanted(otherID)); err != nil {
			t.Error(err)
		}
	})
	group.Wait()
	h.has(id, one)
	h.has(otherID, two)
}

// A disk that fills in the middle is told of; nothing that passes for an image
// is left, and with room again the artifact comes.
func TestDiskFullInTheMiddle(t *testing.T) {
	dir := t.TempDir()
	check(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=6m"))
	t.Cleanup(func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	b := picture(1, 60) // 3.9 MB
	h := newHolder(t, dir)
	o := newOrigin(t, b)
	filler := dir + "/" + "filler"
	var once sync.Once
	o.watch = func(string) {
		once.Do(func() {
			if err := os.WriteFile(filler, make([]byte, 4<<20), 0o600); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := h.ensure(o.wanted(id)); !errors.Is(err, fault.DiskFull) {
		t.Fatalf("got %v", err)
	}
	if got := h.files(); got != "filler" {
		t.Errorf("there is %s", got)
	}
	check(t, os.Remove(filler))
	_, err := h.ensure(o.wanted(id))
	check(t, err)
	h.has(id, b)
}

// Words are never stored as an image, whatever their status says.
func TestWordsAreNoChunks(t *testing.T) {
	b := picture(1, 20)
	h := newHolder(t, t.TempDir())
	o := newOrigin(t, b)
	o.turn = words(200, `{"requestID":"r","ret":{"ret_code":130404},"error":{"code":"artifact_not_found","message":"it is gone"}}`)
	if _, err := h.ensure(o.wanted(id)); !errors.Is(err, fault.ArtifactNotFound) {
		t.Errorf("got %v", err)
	}
	if got := h.files(); got != "" {
		t.Errorf("there is %s", got)
	}
}

// Chunks that nobody asks for any more do not fill the disk.
func TestOldChunksAreDropped(t *testing.T) {
	b := picture(1, 20)
	h := newHolder(t, t.TempDir())
	old := h.Path(otherID) + ".0123456789abcdef.part"
	check(t, os.WriteFile(old, b, 0o600))
	check(t, h.Sweep())
	if got := h.files(); !strings.Contains(got, ".part") {
		t.Fatalf("there is %s", got)
	}
	long := unix.Timeval{Sec: 1}
	check(t, unix.Utimes(old, []unix.Timeval{long, long}))
	_, err := h.ensure(newOrigin(t, b).wanted(id))
	check(t, err)
	if got := h.files(); got != ".chunks .ext4 .json" {
		t.Errorf("there is %s", got)
	}
}

func asked(r *hostpb.ReadArtifactRequest, b []byte) []byte {
	return b[r.GetOffset() : r.GetOffset()+r.GetSizeBytes()]
}
