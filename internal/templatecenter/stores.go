package templatecenter

import (
	"context"
	"errors"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// identified is a store that can say which one it is.
type identified interface {
	Identity(ctx context.Context) (string, error)
}

// noteStore notes that the bytes of an artifact are in s, or will be. The caller
// has the lock of these bytes.
func (c *Center) noteStore(ctx context.Context, id template.ArtifactID, s identified) error {
	name, err := s.Identity(ctx)
	if err != nil {
		return err
	}
	return c.db.Update(ctx, func(tx *store.Tx) error { return templatedb.PutStore(ctx, tx, id, name) })
}

// absence keeps "not here" from passing for "gone": only the very store that the
// bytes were put in can say so. From any other, also from a volume that is not
// mounted, nothing follows: fault.BytesElsewhere, fault.StoreUnavailable.
func (c *Center) absence(ctx context.Context, a template.Artifact, err error) error {
	if !errors.Is(err, fault.ArtifactNotFound) {
		return err
	}
	var wrote string
	if err := c.db.View(ctx, func(tx *store.Tx) (err error) {
		wrote, err = templatedb.StoreOf(ctx, tx, a.ID)
		return err
	}); err != nil {
		return err
	}
	here, unnamed := c.keep.Identity(ctx)
	if unnamed != nil {
		return unnamed
	}
	before := ""
	if c.legacy != nil {
		before, _ = c.legacy.Identity(ctx) // one without a name never was a store of ours
	}
	switch {
	case a.Backend == "s3" && c.keep.Backend() == "dir": // whatever was noted
	case wrote == here:
		return err
	case wrote == "":
		return fault.New(fault.BytesElsewhere, "artifact %s is not in %s, and nobody noted where it was stored", a.ID, here)
	case wrote == before:
		return err
	}
	return fault.New(fault.BytesElsewhere, "artifact %s was stored in %s, and this template centre looks at %s", a.ID, wrote, here)
}

// noteStores notes where artifacts are of which nobody did: those of an older
// program. Only bytes that are seen count.
func (c *Center) noteStores(ctx context.Context) error {
	var errs []error
	after := template.ArtifactID("")
	for range sweepPages {
		var list []template.Artifact
		err := c.db.View(ctx, func(tx *store.Tx) (err error) {
			list, err = templatedb.Unnoted(ctx, tx, after, sweepLimit)
			return err
		})
		if errs = append(errs, err); len(list) == 0 {
			break
		}
		for _, a := range list {
			errs = append(errs, c.noteSeen(ctx, a))
			after = a.ID
		}
	}
	return errors.Join(errs...)
}

func (c *Center) noteSeen(ctx context.Context, a template.Artifact) error {
	info, legacy, err := c.statBytes(ctx, objectKey(a.ID))
	switch {
	case err != nil:
		return ignoreAbsent(err)
	case info.Size != a.SizeBytes:
		return nil
	}
	// Somebody may be moving it right now, and notes that; the next sweep looks again.
	_, err = c.db.WithLock(ctx, lockOf(a.ID), 0, func(ctx context.Context) error {
		if _, found, err := c.row(ctx, a.ID); err != nil || !found {
			return err // deleted meanwhile
		}
		if legacy {
			return ignoreUnnamed(c.noteStore(ctx, a.ID, c.legacy))
		}
		return c.noteStore(ctx, a.ID, c.keep)
	})
	return err
}

// forgetStores removes the notes of artifacts that came to nothing: their builder
// ended between noting and storing, and nobody made them since.
func (c *Center) forgetStores(ctx context.Context) error {
	var list []template.ArtifactID
	err := c.db.View(ctx, func(tx *store.Tx) (err error) {
		list, err = templatedb.StrayStores(ctx, tx, tx.Now.Add(-orphanAfter), sweepLimit)
		return err
	})
	errs := []error{err}
	for _, id := range list {
		// Whoever has the lock is making it.
		_, err := c.db.WithLock(ctx, lockOf(id), 0, func(ctx context.Context) error {
			if _, found, err := c.row(ctx, id); err != nil || found {
				return err
			}
			return c.db.Update(ctx, func(tx *store.Tx) error { return templatedb.ForgetStore(ctx, tx, id) })
		})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ignoreUnnamed: a directory of before may be older than names are.
func ignoreUnnamed(err error) error {
	if errors.Is(err, fault.StoreUnavailable) {
		return nil
	}
	return err
}
