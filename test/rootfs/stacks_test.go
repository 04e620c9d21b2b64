package rootfs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/rootfs"
)

const (
	stacksByDefault = 30
	shrinkFor       = 2 * time.Minute
)

// seeds are those of the environment, or as many as say so from 1.
// PADDOCK_STACKS is how many, PADDOCK_SEED the first: alone, the only one.
func seeds(t *testing.T, n uint64) []uint64 {
	t.Helper()
	read := func(name string) (uint64, bool) {
		s, ok := os.LookupEnv(name)
		v, err := strconv.ParseUint(s, 10, 64)
		if ok && err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return v, ok
	}
	first, alone := read("PADDOCK_SEED")
	if !alone {
		first = 1
	} else {
		n = 1
	}
	if many, ok := read("PADDOCK_STACKS"); ok {
		n = many
	}
	out := make([]uint64, n)
	for i := range out {
		out[i] = first + uint64(i)
	}
	return out
}

// TestStacks builds random stacks of layers, and holds each image against what
// umoci makes of the same layers.
func TestStacks(t *testing.T) {
	work := workspace(t)
	for _, seed := range seeds(t, stacksByDefault) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			own := filepath.Join(work, fmt.Sprint(seed))
			judge(t, seed, generate(seed, false), func(s stack) ([]difference, error) { return compare(t.Context(), own, s) })
		})
	}
}

// TestStacksMadeAnew has so much replaced in each stack that the image is
// written a second time without its gaps.
func TestStacksMadeAnew(t *testing.T) {
	work := workspace(t)
	for _, seed := range seeds(t, 2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := generate(seed, false)
			big := anEntry(file, "replaced above", func(e *entry) { e.body = body{size: 40 << 20} })
			s[0].entries = slices.Insert(slices.Clone(s[0].entries), len(s[0].entries)/2, big)
			s = append(s, layer{[]entry{anEntry(file, big.name)}, gzipd})
			own := filepath.Join(work, fmt.Sprint(seed))
			judge(t, seed, s, func(s stack) ([]difference, error) { return compareAnew(t.Context(), own, s) })
		})
	}
}

// TestSecondOpinion holds containers/storage, which unpacks for podman, against
// the model too: what umoci and it agree on is no habit of one program.
func TestSecondOpinion(t *testing.T) {
	work := workspace(t)
	for _, seed := range seeds(t, 3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			own := filepath.Join(work, fmt.Sprint(seed))
			judge(t, seed, generate(seed, true), func(s stack) ([]difference, error) { return secondOpinion(t.Context(), own, s) })
		})
	}
}

// judge reports what is wrong with a stack, and the smallest stack that was
// found in which the same is wrong.
func judge(t *testing.T, seed uint64, s stack, find func(stack) ([]difference, error)) {
	t.Helper()
	bad, err := find(s)
	if err != nil {
		t.Fatalf("seed %d: %v\n%s", seed, err, s)
	}
	if len(bad) == 0 {
		return
	}
	small := shrink(s, shrinkFor, func(s stack) bool {
		now, err := find(s)
		return err == nil && len(now) > 0 && now[0].who == bad[0].who && now[0].word == bad[0].word
	})
	left, err := find(small)
	t.Errorf("seed %d: %d differences\n%s\nthe smallest stack (of %d entries, from %d):\n%s%s%v",
		seed, len(bad), list(bad), small.count(), s.count(), small, list(left), err)
}

func list(bad []difference) string {
	var b strings.Builder
	for i, d := range bad {
		if i == 12 {
			fmt.Fprintf(&b, "and %d more\n", len(bad)-i)
			break
		}
		fmt.Fprintln(&b, d)
	}
	return b.String()
}

// compare returns in what umoci, the model and our image differ. An error is
// of the test itself.
func compare(ctx context.Context, work string, s stack) ([]difference, error) {
	return compareBuilt(ctx, work, s, func(built) []difference { return nil })
}

// compareAnew wants an image that was written twice, too.
func compareAnew(ctx context.Context, work string, s stack) ([]difference, error) {
	return compareBuilt(ctx, work, s, func(b built) []difference {
		if !b.Receipt.Compacted {
			return []difference{{"receipt", "", "compacted", "the image was not made anew"}}
		}
		return nil
	})
}

func compareBuilt(ctx context.Context, work string, s stack, also func(built) []difference) (bad []difference, err error) {
	m, err := laid(s)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	u, err := umoci(ctx, work, s)
	if err != nil {
		return []difference{{"umoci", "", "", err.Error()}}, nil
	}
	if bad, err = u.against("umoci", m, umociBelief, u.excuses(m)); err != nil {
		return nil, err
	}
	b, err := buildStack(ctx, work, s, devicesOf(s))
	if err != nil {
		return append(bad, difference{"build", "", faultName(err), err.Error()}), nil
	}
	more, err := imageAgainst(ctx, work, b, m)
	return append(append(bad, also(b)...), more...), err
}

// devicesOf is the policy of a stack: most keep every device.
func devicesOf(s stack) rootfs.Rule {
	if len(s) == 3 {
		return rootfs.Strip
	}
	return rootfs.Allow
}

func secondOpinion(ctx context.Context, work string, s stack) ([]difference, error) {
	m, err := laid(s)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	u, err := stored(ctx, work, s)
	if err != nil {
		return []difference{{"containers/storage", "", "", err.Error()}}, nil //nolint:nilerr // it is told as a difference
	}
	return u.against("containers/storage", m, umociBelief, storageExcuses(m))
}
