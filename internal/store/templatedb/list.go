package templatedb

import (
	"context"
	"strings"

	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/template"
)

// Filter narrows a list of templates; zero fields do not.
type Filter struct {
	States       []template.State
	InstanceType string
	AliasPrefix  string
	Image        string // part of the image's name or digest
	After        Place
	Limit        int // 0: 100
}

func (f Filter) where(created, id, alias, image, digest string) (string, []any) {
	first, args := f.After.behind(created, id)
	where := []string{first}
	if f.AliasPrefix != "" {
		where, args = append(where, "SUBSTR("+alias+", 1, ?) = ?"), append(args, len(f.AliasPrefix), []byte(f.AliasPrefix))
	}
	if f.Image != "" {
		where, args = append(where, "(INSTR("+image+", ?) > 0 OR INSTR("+digest+", ?) > 0)"), append(args, []byte(f.Image), []byte(f.Image))
	}
	return strings.Join(where, " AND "), args
}

// PageOfDefinitions returns templates, newest first.
func PageOfDefinitions(ctx context.Context, tx *store.Tx, f Filter) ([]template.Definition, error) {
	where, args := f.where("created_us", "id", "alias", "image_ref", "digest")
	if len(f.States) > 0 {
		where += " AND " + in("state", len(f.States))
		for _, s := range f.States {
			args = append(args, string(s))
		}
	}
	if f.InstanceType != "" {
		where, args = where+" AND instance_type = ?", append(args, []byte(f.InstanceType))
	}
	return store.Collect(ctx, tx, scanDefinition, `SELECT `+definitionColumns+` FROM definition WHERE `+where+` ORDER BY created_us DESC, id DESC LIMIT ?`, append(args, limitOf(f.Limit))...)
}

// PageOfPending returns the newest job of each template that has no definition,
// newest first: what is being made, or never came to be. Of the states of f only
// Creating and Failed can be met. The instance type is not looked at: only the
// request has it.
func PageOfPending(ctx context.Context, tx *store.Tx, f Filter) ([]template.Job, error) {
	where, args := f.where("j.created_us", "j.id", "j.alias", "j.image_ref", "j.digest")
	if len(f.States) > 0 {
		var jobs []string
		for _, s := range f.States {
			switch s {
			case template.Creating:
				jobs = append(jobs, `j.state NOT IN ('ready', 'failed')`)
			case template.Failed:
				jobs = append(jobs, `j.state IN ('ready', 'failed')`)
			}
		}
		if len(jobs) == 0 {
			return nil, nil
		}
		where += " AND (" + strings.Join(jobs, " OR ") + ")"
	}
	return store.Collect(ctx, tx, scanJob, `SELECT `+jobColumns+` FROM job j
		WHERE NOT EXISTS (SELECT 1 FROM definition d WHERE d.id = j.template_id)
		AND NOT EXISTS (SELECT 1 FROM job n WHERE n.template_id = j.template_id AND n.attempt_no > j.attempt_no)
		AND `+where+` ORDER BY j.created_us DESC, j.id DESC LIMIT ?`, append(args, limitOf(f.Limit))...)
}

// Backends returns where the bytes of artifacts are.
func Backends(ctx context.Context, tx *store.Tx, ids []template.ArtifactID) (map[template.ArtifactID]string, error) {
	found := map[template.ArtifactID]string{}
	if len(ids) == 0 {
		return found, nil
	}
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = string(id)
	}
	_, err := store.Collect(ctx, tx, func(r store.Scanner) (struct{}, error) {
		var id template.ArtifactID
		var backend string
		err := r.Scan(&id, &backend)
		found[id] = backend
		return struct{}{}, err
	}, `SELECT id, backend FROM artifact WHERE `+in("id", len(ids)), args...)
	return found, err
}
