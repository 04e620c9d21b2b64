package master

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/http"
	"strings"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/platform/logs"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/templatedb"
	"github.com/paddock-dev/paddock/internal/template"
)

// What the audit log calls the changes that users ask for.
const (
	actTemplateCreate = "template.create"
	actTemplateDelete = "template.delete"
	actTemplateRedo   = "template.redo"
	actTemplateMove   = "template.migrate"
	actJobCancel      = "job.cancel"
	actTemplateForce  = "template.force_delete"
	actAliasSet       = "alias.set"
	actAliasMove      = "alias.move"
	actAliasClear     = "alias.clear"
	actGC             = "artifact.gc"
	actHostRemove     = "host.remove"
	actHostCordon     = "host.cordon"
	actHostUncordon   = "host.uncordon"
	actHostDrain      = "host.drain"
	actHostLabel      = "host.label"
	actHostQuota      = "host.quota"

	actSandboxPause    = "sandbox.pause"
	actSandboxResume   = "sandbox.resume"
	actSandboxRollback = "sandbox.rollback"
	actSandboxTimeout  = "sandbox.timeout"
	actSandboxUpdate   = "sandbox.update"
	actSandboxClone    = "sandbox.clone"
	actSandboxCommit   = "sandbox.commit"
	actSnapshot        = "snapshot.create"
	actSnapshotDelete  = "snapshot.delete"
	actOrphan          = "orphan.remove"
)

type actorKey struct{}

// signed notes who calls, for what is written of it: which key by a fingerprint
// that tells keys apart and gives none away, and from where. Work that goes on
// behind the call keeps it.
func signed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), actorKey{}, actorOf(r))))
	})
}

func actorOf(r *http.Request) string {
	key := r.Header.Get(cubeapi.HeaderAPIKey)
	if key == "" {
		_, key, _ = strings.Cut(r.Header.Get("Authorization"), " ")
	}
	who := "anonymous"
	if key != "" {
		sum := sha256.Sum256([]byte("paddock audit " + key))
		who = "key-" + hex.EncodeToString(sum[:])[:12]
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	return who + "@" + host
}

// audit notes a change that a user asked for, in the transaction that makes it.
// detail is pairs of a name and a value, and must hold no secret. What the system
// does by itself has no actor and is not noted.
func audit(ctx context.Context, tx *store.Tx, action, subject string, detail ...string) error {
	actor, ok := ctx.Value(actorKey{}).(string)
	if !ok {
		return nil
	}
	e := template.AuditEntry{Actor: actor, Action: action, Subject: subject, RequestID: logs.RequestID(ctx)}
	for i := 0; i+1 < len(detail); i += 2 {
		if detail[i+1] == "" {
			continue
		}
		if e.Detail == nil {
			e.Detail = map[string]string{}
		}
		e.Detail[detail[i]] = clip(detail[i+1])
	}
	return templatedb.AddAudit(ctx, tx, e)
}

func (m *Master) serveAudit(w http.ResponseWriter, r *http.Request) {
	answer := cubeapi.AuditAnswer{Envelope: cubeapi.OK(requestID(r)), Data: []cubeapi.AuditEntry{}}
	limit, after, err := pageOf(r)
	if err == nil {
		err = m.db.View(r.Context(), func(tx *store.Tx) error {
			list, err := templatedb.ListAudit(r.Context(), tx, r.URL.Query().Get("subject"), after.Place, limit+1)
			answer.Data = answer.Data[:0]
			for i, e := range list {
				if i == limit {
					last := list[limit-1]
					answer.NextCursor = cursor{Place: templatedb.Place{At: last.At, ID: last.ID}}.String()
					break
				}
				answer.Data = append(answer.Data, cubeapi.AuditEntry{ID: e.ID, At: stamp(e.At), Actor: e.Actor, Action: e.Action, Subject: e.Subject, RequestID: e.RequestID, Detail: e.Detail})
			}
			return err
		})
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, answer)
}
