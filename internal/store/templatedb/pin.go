package templatedb

import (
	"context"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

// Pin keeps a usable template from being deleted until the transaction ends:
// what the transaction adds to it is then seen by whoever deletes. Otherwise
// fault.TemplateNotReady.
func Pin(ctx context.Context, tx *store.Tx, d template.Definition) error {
	n, err := tx.Exec(ctx, `UPDATE definition SET changed_us = changed_us WHERE id = ? AND state IN (?, ?)`, string(d.ID), string(template.Ready), string(template.PartiallyReady))
	if err == nil && n == 0 {
		err = fault.New(fault.TemplateNotReady, "template %s", d.ID)
	}
	return err
}

// DefinitionsIn returns the templates in a state, the one that waits longest
// first, at most limit.
func DefinitionsIn(ctx context.Context, tx *store.Tx, state template.State, limit int) ([]template.Definition, error) {
	return store.Collect(ctx, tx, scanDefinition, `SELECT `+definitionColumns+` FROM definition WHERE state = ? ORDER BY changed_us, id LIMIT ?`, string(state), limitOf(limit))
}

// RemoveReplicas removes the rows of a template that never came to be.
func RemoveReplicas(ctx context.Context, tx *store.Tx, id template.ID) error {
	_, err := tx.Exec(ctx, `DELETE FROM replica WHERE template_id = ?`, string(id))
	return err
}
