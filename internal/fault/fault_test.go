package fault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
)

func TestEveryCodeIsWhole(t *testing.T) {
	form, seen := regexp.MustCompile(`^[a-z][a-z0-9_]{2,40}$`), map[string]bool{}
	for _, c := range fault.All() {
		if !form.MatchString(c.Name) || seen[c.Name] {
			t.Errorf("code %q: not a word in small letters, or named twice", c.Name)
		}
		seen[c.Name] = true
		if c.Class == nil || c.Meaning == "" || c.Remedy == "" {
			t.Errorf("code %s lacks class, meaning or remedy", c.Name)
		}
		if strings.ContainsAny(c.Meaning+c.Remedy, "|\n") {
			t.Errorf("code %s: a bar or a line break would break docs/faults.md", c.Name)
		}
		if r := c.RetCode(); r < 130400 || r > 130600 {
			t.Errorf("code %s: ret_code %d is outside 130400-130600", c.Name, r)
		}
	}
}

// What a face shows of a class must lead back to it, and no failure may look
// like success.
func TestClassesAreTold(t *testing.T) {
	grpc, exit := map[uint32]string{}, map[int]bool{}
	for _, c := range fault.Classes() {
		if grpc[c.GRPC] != "" || c.GRPC == 0 || c.GRPC > 16 {
			t.Errorf("class %s: gRPC code %d is success, unknown, or that of %s", c.Name, c.GRPC, grpc[c.GRPC])
		}
		grpc[c.GRPC], exit[c.Exit] = c.Name, true
		if c.HTTP < 400 || c.HTTP > 599 || c.Exit == 0 {
			t.Errorf("class %s: HTTP %d, exit %d", c.Name, c.HTTP, c.Exit)
		}
	}
	for _, c := range fault.All() {
		if grpc[c.Class.GRPC] != c.Class.Name {
			t.Errorf("code %s: its class is not in Classes", c.Name)
		}
	}
}

// A sandbox whose disk is full stays full until somebody frees room, whereas a
// host that is full may have room for the next try.
func TestWhatTryingAgainDoesNotMend(t *testing.T) {
	for code, again := range map[*fault.Code]bool{fault.SandboxDiskFull: false, fault.HostFull: true, fault.NoCapacity: true} {
		if got := fault.Describe(fault.New(code, "x")).Retryable; got != again {
			t.Errorf("%s: retryable %v, want %v", code.Name, got, again)
		}
	}
}

func TestOf(t *testing.T) {
	inner := fault.New(fault.StoreUnavailable, "read jobs")
	for _, c := range []struct {
		name string
		err  error
		want *fault.Code
	}{
		{"bare", fault.LeaseHeld, fault.LeaseHeld},
		{"wrapped bare", fmt.Errorf("acquire: %w", fault.LeaseHeld), fault.LeaseHeld},
		{"new", fault.New(fault.AliasTaken, "alias %s", "a"), fault.AliasTaken},
		{"outermost wins", fault.Wrap(fault.BuildFailed, inner, "build"), fault.BuildFailed},
		{"through text", fmt.Errorf("a: %w", fmt.Errorf("b: %w", inner)), fault.StoreUnavailable},
		{"first of joined", errors.Join(errors.New("plain"), inner, fault.Exists), fault.StoreUnavailable},
		{"two verbs", fmt.Errorf("%w and %w", errors.New("plain"), fault.Exists), fault.Exists},
		{"no code", errors.New("plain"), fault.Bug},
		{"cancelled", fmt.Errorf("call: %w", context.Canceled), fault.CallCancelled},
		{"late", fmt.Errorf("call: %w", context.DeadlineExceeded), fault.Deadline},
		{"code beats context", fault.Wrap(fault.PeerUnavailable, context.DeadlineExceeded, "call"), fault.PeerUnavailable},
		{"remote", fault.Parse(fault.Detail{Code: "no_host", Message: "m"}, 503), fault.NoHost},
	} {
		if got := fault.Of(c.err); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got.Name, c.want.Name)
		}
	}
}

func TestWrapKeepsTheCause(t *testing.T) {
	cause := errors.New("disk on fire")
	err := fault.Wrap(fault.DiskFull, fmt.Errorf("write: %w", cause), "artifact %s", "rfs-1")
	if !errors.Is(err, fault.DiskFull) || !errors.Is(err, cause) {
		t.Error("errors.Is does not find the code, or the cause")
	}
	if got, want := err.Error(), "artifact rfs-1: disk_full: write: disk on fire"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	twice := fault.Wrap(fault.BuildFailed, err, "build")
	if !errors.Is(twice, fault.BuildFailed) || !errors.Is(twice, fault.DiskFull) {
		t.Error("errors.Is does not find both codes")
	}
}

func TestDescribe(t *testing.T) {
	cause := errors.New("connection refused")
	remote := fault.Parse(fault.Detail{Code: "no_host", Message: "place: no_host", Cause: "all cordoned", Remedy: "uncordon", Retryable: true}, 503)
	for _, c := range []struct {
		name string
		err  error
		want fault.Detail
	}{
		{
			"table's words", fault.New(fault.AliasTaken, "alias a"),
			fault.Detail{Code: "alias_taken", Message: "alias a: alias_taken", Cause: fault.AliasTaken.Meaning, Remedy: fault.AliasTaken.Remedy},
		},
		{
			"cause shown", fault.Wrap(fault.RegistryDown, cause, "pull"),
			fault.Detail{Code: "registry_unavailable", Message: "pull: registry_unavailable: connection refused", Cause: "connection refused", Remedy: fault.RegistryDown.Remedy, Retryable: true},
		},
		{
			"own remedy", &fault.Error{Code: fault.TokenUnset, Message: "call", Remedy: "set it"},
			fault.Detail{Code: "token_unset", Message: "call: token_unset", Cause: fault.TokenUnset.Meaning, Remedy: "set it", Retryable: true},
		},
		{
			"nothing of another code", errors.Join(fault.LeaseHeld, &fault.Error{Code: fault.TokenUnset, Message: "x", Remedy: "set it"}),
			fault.Detail{Code: "lease_held", Message: "lease_held\nx: token_unset", Cause: fault.LeaseHeld.Meaning, Remedy: fault.LeaseHeld.Remedy},
		},
		{
			"internal hides", errors.New("password is hunter2"),
			fault.Detail{Code: "internal", Message: "internal error", Cause: fault.Bug.Meaning, Remedy: fault.Bug.Remedy},
		},
		{
			"internal hides its cause", fault.Wrap(fault.Bug, errors.New("hunter2"), "x"),
			fault.Detail{Code: "internal", Message: "internal error", Cause: fault.Bug.Meaning, Remedy: fault.Bug.Remedy},
		},
		{
			"remote, with what is known here", fmt.Errorf("create i1: %w", remote),
			fault.Detail{Code: "no_host", Message: "create i1: place: no_host", Cause: "all cordoned", Remedy: "uncordon", Retryable: true},
		},
		{
			"remote under another code", fault.Wrap(fault.HostUnreachable, remote, "h1"),
			fault.Detail{Code: "host_unreachable", Message: "h1: host_unreachable: place: no_host", Cause: "place: no_host", Remedy: fault.HostUnreachable.Remedy, Retryable: true},
		},
	} {
		if got := fault.DetailOf(c.err); got != c.want {
			t.Errorf("%s:\n%+v, want\n%+v", c.name, got, c.want)
		}
	}
}

func TestParse(t *testing.T) {
	for _, c := range fault.All() {
		d := fault.Describe(fault.New(c, "x"))
		err := fault.Parse(d, c.Class.HTTP)
		if !errors.Is(err, c) || fault.Describe(err) != d {
			t.Errorf("%s does not survive: %+v", c.Name, fault.Describe(err))
		}
	}
	// A newer peer may know codes that this program does not.
	for status, class := range map[int]*fault.Class{404: fault.NotFound, 409: fault.Conflict, 429: fault.Exhausted, 503: fault.Unavailable, 418: fault.Internal, 0: fault.Internal} {
		err := fault.Parse(fault.Detail{Code: "brand_new", Message: "m", Remedy: "r"}, status)
		if got := fault.Of(err); got.Name != "brand_new" || got.Class != class {
			t.Errorf("status %d: %s of class %s, want class %s", status, got.Name, got.Class.Name, class.Name)
		}
	}
}

func TestDocument(t *testing.T) {
	const path = "../../docs/faults.md"
	want := fault.Document()
	if os.Getenv("UPDATE") == "1" {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: run UPDATE=1 go test", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s does not show the codes as they stand: run UPDATE=1 go test", path)
	}
}
