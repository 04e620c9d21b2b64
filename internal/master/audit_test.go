package master_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/store"
)

// audited returns what the audit log has, oldest first, as action and subject.
func (r *rig) audited(subject string) (all []cubeapi.AuditEntry) {
	r.t.Helper()
	for cursor := ""; ; {
		page, next, err := r.api.Audit(r.t.Context(), subject, 3, cursor)
		must(r.t, err)
		all = append(all, page...)
		if cursor = next; next == "" {
			break
		}
	}
	for i := range len(all) / 2 {
		all[i], all[len(all)-1-i] = all[len(all)-1-i], all[i]
	}
	return all
}

func actions(list []cubeapi.AuditEntry) string {
	var words []string
	for _, e := range list {
		words = append(words, e.Action)
	}
	return strings.Join(words, " ")
}

// Whoever changes something by hand is noted with the change itself; what is
// refused, or what the system does, is not.
func TestWhatUsersChangeIsNoted(t *testing.T) {
	onBoth(t, func(t *testing.T, dsn string) {
		r, hosts := ready(t, dsn, 1, plenty)
		d, err := r.api.Template(t.Context(), "base")
		must(t, err)
		second := r.template(alias("second"))
		_, err = r.api.SetAlias(t.Context(), second.TemplateID, "base")
		must(t, err)
		_, err = r.api.SetAlias(t.Context(), second.TemplateID, "base") // says nothing new
		must(t, err)
		_, err = r.api.SetAlias(t.Context(), "base", "")
		must(t, err)
		_, err = r.api.SetAlias(t.Context(), d.TemplateID, "again")
		must(t, err)
		box, err := r.create("again")
		must(t, err)
		refused(t, r.api.DeleteTemplate(t.Context(), "again"), fault.TemplateInUse)
		must(t, r.api.DeleteSandbox(t.Context(), box.SandboxID))
		must(t, r.api.DeleteTemplate(t.Context(), "again"))
		if got := actions(r.audited(d.TemplateID)); got != "template.create alias.set template.delete" {
			t.Errorf("of the first template: %s", got)
		}
		list := r.audited(second.TemplateID)
		if got := actions(list); got != "template.create alias.move alias.clear" {
			t.Fatalf("of the second template: %s", got)
		}
		if move := list[1]; move.Detail["alias"] != "base" || move.Detail["from"] != d.TemplateID || move.Detail["before"] != "second" || move.RequestID == "" || !strings.HasPrefix(move.Actor, "key-") || !strings.HasSuffix(move.Actor, "@127.0.0.1") || strings.Contains(move.Actor, apiKey) {
			t.Errorf("move: %+v", move)
		}
		_, err = r.api.CordonHost(t.Context(), string(hosts[0].id), true)
		must(t, err)
		_, err = r.api.CordonHost(t.Context(), string(hosts[0].id), false)
		must(t, err)
		r.silence(hosts[0])
		hosts[0].away()
		eventually(t, "the host may be removed", func() bool { return r.api.RemoveHost(t.Context(), string(hosts[0].id), true) == nil })
		if got := actions(r.audited(string(hosts[0].id))); got != "host.cordon host.uncordon host.remove" {
			t.Errorf("of the host: %s", got)
		}
		old := r.leave("old", nil, longAgo)
		if _, err := r.api.GC(t.Context(), cubeapi.GCRequest{}); err != nil {
			t.Error(err)
		}
		if got := actions(r.audited(string(old.ID))); got != "artifact.gc" && got != "" { // the sweep may have been sooner
			t.Errorf("of the artifact: %s", got)
		}
		// Another key is another actor.
		_, _, err = cubeapi.NewClient(r.front.URL, "guess").Audit(t.Context(), "", 0, "")
		refused(t, err, fault.Unauthenticated)
	})
}

func TestTheAuditLogIsForgotten(t *testing.T) {
	r := newRig(t, sqlite(t), func(c *config.Config) { c.Master.AuditKept = time.Hour })
	r.start()
	r.center.set(func(c *fakeCenter) { c.idle = true })
	j, err := r.api.FromImage(t.Context(), image())
	must(t, err)
	_, err = r.api.FromImage(t.Context(), image())
	must(t, err)
	must(t, r.db.Update(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(t.Context(), `UPDATE audit SET at_us = 1 WHERE subject = ?`, []byte(j.TemplateID))
		return err
	}))
	eventually(t, "the old entry goes", func() bool { return len(r.audited("")) == 1 })
}

// A registry's password is in no row, no file of the database and no log.
func TestCredentialsAreKeptNowhere(t *testing.T) {
	dsn := sqlite(t)
	r := newRig(t, dsn)
	r.start()
	r.host(0, plenty)
	const user, password = "deploy-robot", "hunter2-hunter2"
	r.template(alias("base"), func(q *cubeapi.FromImageRequest) { q.RegistryUsername, q.RegistryPassword = user, password })
	_, err := r.api.FromImage(t.Context(), image(func(q *cubeapi.FromImageRequest) {
		q.SourceImageRef = user + ":" + password + "@registry.local/base:1"
	}))
	refused(t, err, fault.ImageRef)
	r.center.set(func(c *fakeCenter) { c.refuse = fault.New(fault.StateConflict, "no") })
	_, err = r.api.FromImage(t.Context(), image(func(q *cubeapi.FromImageRequest) {
		q.SourceImageRef, q.RegistryUsername, q.RegistryPassword = "registry.local/other:1", user, password
	}))
	must(t, err)
	r.crash()
	path := strings.TrimPrefix(dsn, "sqlite:")
	found := 0
	for _, end := range []string{"", "-wal"} {
		b, err := os.ReadFile(path + end)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		must(t, err)
		found++
		for _, secret := range []string{password, apiKey, callbackToken, hostToken} {
			if strings.Contains(string(b), secret) {
				t.Errorf("%s%s holds %q", path, end, secret)
			}
		}
	}
	if found == 0 || !strings.Contains(r.said.String(), "state changed") && !strings.Contains(r.said.String(), "request") {
		t.Fatal("nothing was looked at")
	}
	for _, secret := range []string{user, password, apiKey, callbackToken, hostToken} {
		if strings.Contains(r.said.String(), secret) {
			t.Errorf("the log says %q", secret)
		}
	}
}
