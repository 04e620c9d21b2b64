package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs"
	"github.com/paddock-dev/paddock/internal/rootfs/blobcache"
	"github.com/paddock-dev/paddock/internal/template"
)

// imageBuild is what `image build` is asked for.
type imageBuild struct {
	request             rootfs.Request
	out, receipt, cache string
	passwordIn          bool
}

func (a *app) buildCommand() *cobra.Command {
	var b imageBuild
	c := &cobra.Command{
		Use: "build --image REF --out FILE", Short: "Make an ext4 image of a container image", Args: args(0, 0),
		Long: `Makes an ext4 image of a container image, straight from its layers: nothing is
unpacked, mounted or run, and no root is needed. The same image gives the same
bytes on every machine.

REF is one of
  registry.example/name:tag          or name@sha256:...; https, or plain http where listed
  oci:DIRECTORY[:TAG|@DIGEST]        an OCI layout
  docker-archive:FILE[:NAME:TAG]     what "docker save" writes

What an image may hold is templatecenter.image_limits and image_policy of the
configuration, how long it may take templatecenter.build_timeout. Without --registry-username the docker configuration is asked for credentials.
FILE appears whole or not at all, and nothing else is left behind.`,
		Example: `  paddock image build --image registry.example/app:1 --out app.ext4 --receipt app.json
  paddock image build --image oci:layout:app --out app.ext4 --cache ~/.cache/paddock
  paddock image build --image 127.0.0.1:5000/app --insecure-registry 127.0.0.1:5000 --out app.ext4 -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := b.check(); err != nil {
				return err
			}
			if b.passwordIn {
				text, err := io.ReadAll(io.LimitReader(a.stdin, 1<<16))
				if err != nil {
					return fault.Wrap(fault.InvalidInput, err, "--registry-password-stdin")
				}
				b.request.Auth.Password = strings.TrimSpace(string(text))
			}
			return a.buildImage(c.Context(), b)
		},
	}
	f, r := c.Flags(), &b.request
	f.StringVar(&r.Reference, "image", "", "`REF` of the image, as above (required)")
	f.StringVar(&b.out, "out", "", "`FILE` to write; one that exists is replaced (required)")
	f.StringVar(&b.receipt, "receipt", "", "`FILE` for the receipt: what the image was made of, and its hashes")
	f.StringVar(&r.Platform, "platform", "", "platform of an index, such as linux/arm64 (default: this machine's)")
	f.StringVar(&r.Auth.Username, "registry-username", "", "user of the registry")
	f.BoolVar(&b.passwordIn, "registry-password-stdin", false, "read the password from standard input")
	f.StringSliceVar(&r.InsecureRegistries, "insecure-registry", nil, "registry that may be reached by plain HTTP, as `HOST:PORT`; may be repeated")
	f.StringVar(&b.cache, "cache", "", "`DIR` that keeps layers for the next build (default: none are kept)")
	f.StringVar(&r.GuestPath, "guest", "", "paddock-guest binary to put in as templates have it (default: none)")
	f.StringVar(&r.EgressCA, "egress-ca", "", "PEM `FILE` of certificates to put into the image's trust stores (default: none)")
	f.StringVar(&r.WorkDir, "work-dir", "", "`DIR` for scratch, on the file system of the output (default: beside it)")
	// What completes a flag is refused only if this command has no such flag.
	for flag, kinds := range map[string][]string{"out": {"ext4", "img"}, "receipt": {"json"}} {
		_ = c.MarkFlagFilename(flag, kinds...)
	}
	for _, flag := range []string{"cache", "work-dir"} {
		_ = c.MarkFlagDirname(flag)
	}
	_ = c.RegisterFlagCompletionFunc("platform", cobra.FixedCompletions([]string{"linux/amd64", "linux/arm64"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (b *imageBuild) check() error {
	switch {
	case b.request.Reference == "":
		return fault.New(fault.InvalidInput, "--image is missing")
	case b.out == "":
		return fault.New(fault.InvalidInput, "--out is missing")
	case b.passwordIn && b.request.Auth.Username == "":
		return fault.New(fault.InvalidInput, "--registry-password-stdin needs --registry-username")
	case b.request.Auth.Username != "" && !b.passwordIn:
		return fault.New(fault.InvalidInput, "--registry-username needs --registry-password-stdin")
	}
	if info, err := os.Stat(b.out); err == nil && !info.Mode().IsRegular() {
		return fault.New(fault.InvalidInput, "--out %s: it exists and is no file", b.out)
	}
	return nil
}

// buildImage makes the image in a scratch directory and gives image and receipt
// their names when both are whole. It takes what a template centre takes: limits
// and policy are those of the configuration.
func (a *app) buildImage(ctx context.Context, b imageBuild) (err error) {
	l, err := a.load()
	if err != nil {
		return err
	}
	b.request.Limits, b.request.Policy = rootfs.LimitsOf(l.TemplateCenter.ImageLimits), rootfs.PolicyOf(l.TemplateCenter.ImagePolicy)
	beside := filepath.Dir(b.out)
	if b.request.WorkDir == "" {
		b.request.WorkDir = beside
	} else if err := sameDisk(b.request.WorkDir, beside); err != nil {
		return err
	}
	scratch, remove, err := makeScratch(b.request.WorkDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	b.request.WorkDir, b.request.Local = scratch, true
	if b.cache != "" {
		cache, err := blobcache.Open(blobcache.Options{Dir: b.cache, Quota: int64(l.TemplateCenter.CacheQuotaMiB) << 20})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cache.Close()) }()
		b.request.Cache = cache
	}
	line := buildLine{line: progressLine{w: a.stderr, terminal: isTerminal(a.stderr)}}
	b.request.Progress = line.event
	bounded, cancel := context.WithTimeout(ctx, l.TemplateCenter.BuildTimeout)
	defer cancel()
	res, err := b.run(bounded, scratch)
	line.end(err == nil)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return fault.New(fault.BuildTooLong, "build of %s within templatecenter.build_timeout %s", b.request.Reference, l.TemplateCenter.BuildTimeout)
	}
	if err != nil && ctx.Err() != nil {
		fmt.Fprintln(a.stderr, "Stopped; nothing was left behind.")
		return exitStatus(130)
	}
	if err != nil {
		return err
	}
	return a.show(builtImage{File: b.out, Receipt: res.Receipt}, func(w io.Writer) { printBuilt(w, b.out, res.Receipt) })
}

// run makes image and receipt in the scratch directory and moves them out.
func (b *imageBuild) run(ctx context.Context, scratch string) (res rootfs.Result, err error) {
	im, err := rootfs.Resolve(ctx, b.request)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, im.Close()) }()
	image, receipt := filepath.Join(scratch, "image"), ""
	if b.receipt != "" {
		// Before the build, so that one that cannot be written costs no time.
		f, err := os.CreateTemp(filepath.Dir(b.receipt), ".paddock-receipt-")
		if err != nil {
			return res, fault.Wrap(fault.InvalidInput, err, "directory of --receipt")
		}
		receipt = f.Name()
		defer func() { err = errors.Join(err, f.Close(), removeIfThere(receipt)) }()
		if res, err = im.WriteTo(ctx, image); err != nil {
			return res, err
		}
		if err := writeReceipt(f, res.Receipt); err != nil {
			return res, err
		}
	} else if res, err = im.WriteTo(ctx, image); err != nil {
		return res, err
	}
	if err := os.Chmod(image, 0o644); err != nil {
		return res, err
	}
	if err := os.Rename(image, b.out); err != nil {
		return res, fault.Wrap(fault.InvalidInput, err, "--out")
	}
	if receipt == "" {
		return res, nil
	}
	if err := os.Rename(receipt, b.receipt); err != nil {
		return res, fault.Wrap(fault.InvalidInput, err, "--receipt")
	}
	return res, nil
}

func writeReceipt(f *os.File, r *rootfs.Receipt) error {
	_, err := r.WriteTo(f)
	if err == nil {
		err = errors.Join(f.Chmod(0o644), f.Sync())
	}
	if err != nil {
		return fault.Wrap(fault.DiskFull, err, "--receipt")
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// sameDisk refuses a scratch directory from which the image cannot be renamed.
func sameDisk(work, out string) error {
	var dev [2]uint64
	for i, path := range []string{work, out} {
		var s unix.Stat_t
		if err := unix.Stat(path, &s); err != nil {
			return fault.Wrap(fault.InvalidInput, &os.PathError{Op: "stat", Path: path, Err: err}, "directory")
		}
		dev[i] = s.Dev
	}
	if dev[0] != dev[1] {
		return fault.New(fault.InvalidInput, "--work-dir %s: it must be on the file system of --out", work)
	}
	return nil
}

// builtImage is what `image build` answers.
type builtImage struct {
	File    string          `json:"file"`
	Receipt *rootfs.Receipt `json:"receipt"`
}

func printBuilt(w io.Writer, file string, r *rootfs.Receipt) {
	fmt.Fprintf(w, "file:\t%s\n", shown(file))
	printReceipt(w, r)
}

func printReceipt(w io.Writer, r *rootfs.Receipt) {
	n := r.Counts
	fmt.Fprintf(w, "sha256:\t%s\nsize:\t%d bytes (%d MiB)\nimage:\t%s\ndigest:\t%s\ncontent_key:\t%s\nuuid:\t%s\n", r.SHA256, r.SizeBytes, r.SizeBytes>>20, shown(r.Reference), r.Digest, r.ContentKey, r.UUID)
	fmt.Fprintf(w, "layers:\t%d\nentries:\t%d: %d files, %d directories, %d symlinks, %d devices, %d FIFOs; %d are further hard links\n", len(r.Layers), n.Names, n.Files, n.Directories, n.Symlinks, n.Devices, n.FIFOs, n.HardLinks)
	fmt.Fprintf(w, "kept:\t%d setuid or setgid, %d with capabilities\n", n.Setuid, n.Capabilities)
	s := n.Stripped
	attributes := int64(0)
	for _, x := range s.Xattrs {
		attributes += x
	}
	fmt.Fprintf(w, "stripped:\t%d devices, %d FIFOs, %d whiteouts of an overlay, %d setuid or setgid, %d capabilities, %d attributes\n", s.Devices, s.FIFOs, s.OverlayWhiteouts, s.Setuid, s.Capabilities, attributes)
	for _, i := range r.Injected {
		fmt.Fprintf(w, "put in:\t%s: %s, %s\n", shown(i.Path), i.What, i.How)
	}
	for _, text := range r.NotWritten {
		fmt.Fprintf(w, "left out:\t%s\n", shown(text))
	}
}

// buildLine shows how far a build is.
type buildLine struct {
	mu    sync.Mutex
	line  progressLine
	drawn time.Time
}

const (
	drawEvery = 50 * time.Millisecond
	laidShare = 90 // percent that the layers are of a build
)

func (l *buildLine) event(e rootfs.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	percent := laidShare
	if e.Phase != template.PhaseBuildingExt4 && e.Phase != template.PhaseStoring && e.TotalBytes > 0 {
		percent = int(min(e.DoneBytes, e.TotalBytes) * laidShare / e.TotalBytes)
	}
	// Elsewhere than on a terminal a line for each phase and tenth is enough.
	key := fmt.Sprint(e.Phase, percent/10)
	if l.line.terminal && time.Since(l.drawn) < drawEvery && key == l.line.last {
		return
	}
	l.drawn = time.Now()
	l.line.draw(percent, key, fmt.Sprintf("%3d%% %-14s %d/%d MiB, %d/%d layers", percent, e.Phase, e.DoneBytes>>20, e.TotalBytes>>20, e.DoneLayers, e.TotalLayers))
}

func (l *buildLine) end(whole bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if whole {
		l.line.draw(100, "done", "100% done")
	}
	l.line.end()
}
