package serve

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
)

// The numbers that existing clients look for, beside the true status. Each class
// of failure has its own, and what users of templates meet is in the right one.
func TestStatusAndRetCode(t *testing.T) {
	for _, c := range []struct {
		err         error
		status, ret int
	}{
		{&fault.Code{Name: "unheard_of", Class: fault.Invalid}, 400, 130400},
		{&fault.Code{Name: "unheard_of", Class: fault.Anonymous}, 401, 130401},
		{&fault.Code{Name: "unheard_of", Class: fault.Forbidden}, 403, 130401},
		{&fault.Code{Name: "unheard_of", Class: fault.NotFound}, 404, 130404},
		{&fault.Code{Name: "unheard_of", Class: fault.Conflict}, 409, 130409},
		{&fault.Code{Name: "unheard_of", Class: fault.Superseded}, 409, 130409},
		{&fault.Code{Name: "unheard_of", Class: fault.Exhausted}, 429, 130429},
		{&fault.Code{Name: "unheard_of", Class: fault.Internal}, 500, 130593},
		{&fault.Code{Name: "unheard_of", Class: fault.Unavailable}, 503, 130594},

		{fault.InvalidInput, 400, 130400},
		{fault.ImageRef, 400, 130400},
		{fault.AliasInvalid, 400, 130400},
		{fault.NoTemplateHosts, 400, 130400},
		{fault.Unauthenticated, 401, 130401},
		{fault.TokenRejected, 401, 130401},
		{fault.TemplateNotFound, 404, 130404},
		{fault.JobNotFound, 404, 130404},
		{fault.ArtifactNotFound, 404, 130404},
		{fault.TemplateNotReady, 409, 130409},
		{fault.TemplateInUse, 409, 130409},
		{fault.BuildInProgress, 409, 130409},
		{fault.AliasTaken, 409, 130409},
		{fault.SubmissionReused, 409, 130409},
		{errors.New("no code at all"), 500, 130593},
		{fault.StoreUnavailable, 503, 130594},
		{fault.TokenUnset, 503, 130594},
	} {
		w := httptest.NewRecorder()
		WriteError(w, httptest.NewRequest("GET", "/", nil), c.err)
		var body refusal
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || w.Code != c.status || body.Ret.Code != c.ret {
			t.Errorf("%v: status %d, ret_code %d, want %d and %d", c.err, w.Code, body.Ret.Code, c.status, c.ret)
		}
	}
}

// What a refusal says besides stands beside its own fields, and never over them.
func TestARefusalSaysMore(t *testing.T) {
	w := httptest.NewRecorder()
	WriteErrorWith(w, httptest.NewRequest("DELETE", "/", nil), fault.New(fault.TemplateInUse, "template t"), map[string]any{"users": []string{"i1"}, "ret": "mine", "error": nil})
	var body struct {
		refusal
		Users []string `json:"users"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || w.Code != 409 || body.Ret.Code != 130409 || len(body.Users) != 1 || body.Error.Code != fault.TemplateInUse.Name {
		t.Errorf("%d %s, %v", w.Code, w.Body, err)
	}
}

func TestABodyThatMayBeAbsent(t *testing.T) {
	for body, want := range map[string]string{"": "as it was", "  \n": "as it was", "null": "as it was", `{}`: "as it was", `{"a":"x"}`: "x"} {
		v := struct {
			A string `json:"a"`
		}{"as it was"}
		r := httptest.NewRequest("PUT", "/", nil)
		if body != "" {
			r = httptest.NewRequest("PUT", "/", strings.NewReader(body))
		}
		if err := ReadOptionalJSON(r, 64, &v); err != nil || v.A != want {
			t.Errorf("%q: %+v, %v", body, v, err)
		}
	}
	for _, bad := range []string{"{", `{"a":1}`, `{} {}`, `{"a":"` + string(make([]byte, 100)) + `"}`} {
		var v struct {
			A string `json:"a"`
		}
		if err := ReadOptionalJSON(httptest.NewRequest("PUT", "/", strings.NewReader(bad)), 64, &v); fault.Of(err) != fault.InvalidInput {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}
