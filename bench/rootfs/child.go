package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/rootfs/source"
)

// childJob is what a process of its own does, so that its time has no warm
// heap and its memory is its own.
type childJob struct {
	what, reference, dir, profile string
	bytes                         int64 // that the bound writes
}

// built is what a child that builds says.
type built struct {
	SHA256     string
	Size       int64
	FileBytes  int64
	BlockBytes int64
	Names      int64
	PeakKiB    int64
}

// child runs a job in a process of its own, and returns what it said and what
// it used.
func child[T any](ctx context.Context, j childJob, env ...string) (out T, u used, err error) {
	self, err := os.Executable()
	if err != nil {
		return out, u, err
	}
	c := exec.CommandContext(ctx, self, "-child", j.what, "-reference", j.reference, "-dir", j.dir, "-bytes", strconv.FormatInt(j.bytes, 10), "-profile", j.profile)
	c.Env = append(os.Environ(), env...)
	c.Stderr = os.Stderr
	var said bytes.Buffer
	c.Stdout = &said
	if u, err = ran(c); err != nil {
		return out, u, fmt.Errorf("child %s: %w", j.what, err)
	}
	return out, u, json.Unmarshal(said.Bytes(), &out)
}

func (j childJob) run(ctx context.Context) error {
	var said any = struct{}{}
	var err error
	if j.what == "bound" {
		err = j.bound(ctx)
	} else {
		said, err = j.build(ctx)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(said)
}

// build makes the image as the product does.
func (j childJob) build(ctx context.Context) (b built, err error) {
	stop, err := j.startProfile()
	if err != nil {
		return b, err
	}
	im, err := rootfs.Resolve(ctx, rootfs.Request{Reference: j.reference, Local: true, WorkDir: j.dir})
	if err != nil {
		return b, err
	}
	defer im.Close()
	res, err := im.WriteTo(ctx, filepath.Join(j.dir, "ours.ext4"))
	if err != nil {
		return b, err
	}
	if err := stop(); err != nil {
		return b, err
	}
	c := res.Receipt.Counts
	b = built{SHA256: res.SHA256, Size: res.SizeBytes, FileBytes: c.FileBytes, BlockBytes: c.BlockBytes, Names: c.Names}
	b.PeakKiB, err = peak()
	return b, err
}

// bound decompresses every layer to nowhere, as many at a time as a build
// does, while one goroutine writes j.bytes in order.
func (j childJob) bound(ctx context.Context) error {
	im, err := source.Resolve(ctx, source.Request{Reference: j.reference, Local: true})
	if err != nil {
		return err
	}
	defer im.Close()
	var g errgroup.Group
	g.Go(j.write)
	decode, ctx := errgroup.WithContext(ctx)
	decode.SetLimit(runtime.GOMAXPROCS(0))
	for i, l := range im.Layers {
		decode.Go(func() error { return decompress(ctx, im, i, l) })
	}
	return errors.Join(decode.Wait(), g.Wait())
}

func decompress(ctx context.Context, im *source.Image, i int, l source.Layer) error {
	packed, err := im.Open(ctx, i)
	if err != nil {
		return err
	}
	plain, err := source.Decompress(packed, l.Compression, source.Limits{})
	if err != nil {
		return errors.Join(err, packed.Close())
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{plain}, make([]byte, 128<<10))
	return errors.Join(err, plain.Close(), packed.Close())
}

// write writes j.bytes that no file system can make smaller, and syncs them.
func (j childJob) write() (err error) {
	f, err := os.Create(filepath.Join(j.dir, "bound"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	piece := make([]byte, 1<<20)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(piece) // it never fails
	for left := j.bytes; left > 0; left -= int64(len(piece)) {
		piece = piece[:min(left, int64(len(piece)))]
		if _, err := f.Write(piece); err != nil {
			return err
		}
	}
	return f.Sync()
}

// peak is the most memory that this process ever had, in KiB. What a parent is
// told of its child may be the parent's own from before the exec.
func peak() (int64, error) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			return strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		}
	}
	return 0, errors.Join(errors.New("/proc/self/status has no VmHWM"), lines.Err())
}

// startProfile begins to record where the time goes, if that is asked for.
func (j childJob) startProfile() (stop func() error, err error) {
	if j.profile == "" {
		return func() error { return nil }, nil
	}
	tag := j.reference[strings.LastIndexByte(j.reference, ':')+1:]
	create := func(kind string) (*os.File, error) {
		return os.Create(filepath.Join(j.profile, tag+"."+kind+".pprof"))
	}
	cpu, err := create("cpu")
	if err != nil {
		return nil, err
	}
	runtime.SetBlockProfileRate(10_000) // nanoseconds
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return nil, errors.Join(err, cpu.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		block, err := create("block")
		if err != nil {
			return errors.Join(err, cpu.Close())
		}
		return errors.Join(pprof.Lookup("block").WriteTo(block, 0), block.Close(), cpu.Close())
	}, nil
}
