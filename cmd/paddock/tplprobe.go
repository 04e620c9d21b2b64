package main

import (
	"github.com/spf13/pflag"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
)

// probeFlags adds the flags of a probe over HTTP and returns what reads them: nil
// when none was given. What they do not say is the server's default, as it is for
// every client: 30 s, a try each 500 ms, one success.
func probeFlags(f *pflag.FlagSet) func() (*cubeapi.Probe, error) {
	port := f.Int("probe", 0, "port that answers HTTP once a sandbox's program serves: sandboxes, and the template, are ready then and not before")
	path := f.String("probe-path", "/health", "path that is asked on that port; the status must be 200 to 399")
	return func() (*cubeapi.Probe, error) {
		switch {
		case f.Changed("probe"):
			return &cubeapi.Probe{Handler: cubeapi.ProbeHandler{HTTPGet: &cubeapi.HTTPGetProbe{Port: *port, Path: *path}}}, nil
		case f.Changed("probe-path"):
			return nil, fault.New(fault.InvalidInput, "--probe-path without --probe: name the port, too")
		}
		return nil, nil
	}
}
