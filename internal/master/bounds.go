package master

import (
	"encoding/json"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
)

// Bounds of a create: what is larger is kept with every sandbox, and shown.
const (
	maxLabelKey    = 128
	maxLabelValue  = 256
	maxCreateScope = 1000
	maxScopeName   = 128
	maxBatchStored = 4 << 20 // bytes of all requests of a batch
)

// checkWords refuses labels, annotations and a scope that cannot be kept or
// shown as they are.
func checkWords(r *cubeapi.SandboxCreateRequest) error {
	if len(r.Labels) > maxAnnotations {
		return fault.New(fault.InvalidInput, "%d labels, at most %d", len(r.Labels), maxAnnotations)
	}
	for k, v := range r.Labels {
		if k == "" || len(k) > maxLabelKey || len(v) > maxLabelValue || !isName(k) || !isName(v) {
			return fault.New(fault.InvalidInput, "label %.64q: a key of 1 to %d and a value of at most %d bytes of text without control characters", k, maxLabelKey, maxLabelValue)
		}
	}
	if err := checkAnnotations(r.Annotations); err != nil {
		return err
	}
	if len(r.Scope) > maxCreateScope {
		return fault.New(fault.InvalidInput, "distribution_scope has %d entries, at most %d", len(r.Scope), maxCreateScope)
	}
	for _, name := range r.Scope {
		if len(name) > maxScopeName || !isName(name) {
			return fault.New(fault.InvalidInput, "distribution_scope %.64q: at most %d bytes of text", name, maxScopeName)
		}
	}
	return nil
}

func checkAnnotations(all map[string]string) error {
	if len(all) > maxAnnotations {
		return fault.New(fault.InvalidInput, "%d annotations, at most %d", len(all), maxAnnotations)
	}
	for k, v := range all {
		if k == "" || len(k)+len(v) > maxAnnotation || !isName(k) || !isText(v) {
			return fault.New(fault.InvalidInput, "annotation %.64q: name and value are text, of at most %d bytes", k, maxAnnotation)
		}
	}
	return nil
}

// checkStored adds a request to the bytes that its batch keeps, and refuses
// what is too much for one transaction.
func (b *batch) checkStored(r cubeapi.SandboxCreateRequest, of int) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if b.stored += len(text); b.stored > maxBatchStored {
		return fault.New(fault.InvalidInput, "the first %d of %d requests have %d bytes, a batch at most %d: send smaller ones", len(b.parts)+1, of, b.stored, maxBatchStored)
	}
	return nil
}
