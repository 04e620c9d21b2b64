package main

import (
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
)

// TestAFailedJobNamesItsCodeOnce: the job's message ends with it already.
func TestAFailedJobNamesItsCodeOnce(t *testing.T) {
	inner := fault.New(fault.DiskFull, "image x")
	for _, message := range []string{inner.Error(), "image x"} {
		err := jobFault(&cubeapi.Job{JobID: "job-1", ErrorCode: "disk_full", ErrorMessage: message})
		if got := err.Error(); strings.Count(got, "disk_full") != 1 || got != "job job-1: image x: disk_full" || fault.Of(err) != fault.DiskFull {
			t.Errorf("%q: %s", message, got)
		}
	}
}
