package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/paddock-dev/paddock/bench"
	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/platform/auth"
	"github.com/paddock-dev/paddock/internal/platform/serve"
	"github.com/paddock-dev/paddock/test/cubelets"
)

// partRounds is how often each part is done.
const partRounds = 100

// parts tells what one create is made of when nobody else is there: each part
// is done alone, as often, in the same run. What is left is the master's own,
// and what it waits for besides.
func (r *rig) parts(ctx context.Context, db string, per float64) ([]bench.Figure, error) {
	api := cubeapi.NewClient(r.url, apiKey)
	host, end, err := r.aHost(ctx, api)
	if err != nil {
		return nil, err
	}
	defer end()
	var box string
	whole, http, commit, call := make([]time.Duration, 0, partRounds), make([]time.Duration, 0, partRounds), make([]time.Duration, 0, partRounds), make([]time.Duration, 0, partRounds)
	for i := range partRounds {
		for _, part := range []struct {
			into *[]time.Duration
			do   func() error
		}{
			{&whole, func() error {
				made, err := api.CreateSandbox(ctx, cubeapi.SandboxCreateRequest{TemplateID: r.template, RequestID: r.next()})
				box = made.SandboxID
				return err
			}},
			{&http, func() error { return api.Health(ctx) }},
			{&commit, func() error { return r.commit(ctx) }},
			{&call, func() error {
				_, err := host.CreateSandbox(ctx, &hostpb.CreateSandboxRequest{
					SandboxId: fmt.Sprintf("i%024x", i), TemplateId: r.template, ArtifactId: string(cubelets.Artifact), Resources: &hostpb.Resources{MilliCpu: 1, MemBytes: 1, DiskBytes: 1, Slots: 1},
				})
				return err
			}},
		} {
			began := time.Now()
			if err := part.do(); err != nil {
				return nil, err
			}
			*part.into = append(*part.into, time.Since(began))
		}
		if err := api.DeleteSandbox(ctx, box); err != nil {
			return nil, err
		}
		if _, err := host.DeleteSandbox(ctx, &hostpb.DeleteSandboxRequest{SandboxId: fmt.Sprintf("i%024x", i)}); err != nil {
			return nil, err
		}
	}
	name := func(what string) string { return fmt.Sprintf("create.part_%s_ms.%s", what, db) }
	all, commits := bench.P50(whole), per*bench.P50(commit)
	return []bench.Figure{
		{Name: name("whole"), Value: all, Unit: "ms", N: partRounds, Note: "median of a create when nobody else is there"},
		{Name: name("commits"), Value: commits, Unit: "ms", N: partRounds, Note: fmt.Sprintf("of it, %.1f commits of one row as they cost alone", per)},
		{Name: name("call"), Value: bench.P50(call), Unit: "ms", N: partRounds, Note: "of it, the call of a host"},
		{Name: name("http"), Value: bench.P50(http), Unit: "ms", N: partRounds, Note: "of it, a request that does nothing"},
		{Name: name("rest"), Value: all - commits - bench.P50(call) - bench.P50(http), Unit: "ms", N: partRounds, Note: "of it, what is left: further statements, the choice, what the master computes"},
	}, nil
}

// aHost connects to one of the hosts, as a master does.
func (r *rig) aHost(ctx context.Context, api *cubeapi.Client) (hostpb.HostServiceClient, func(), error) {
	list, err := api.Hosts(ctx)
	if err != nil || len(list) == 0 {
		return nil, nil, fmt.Errorf("%d hosts: %w", len(list), err)
	}
	c, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(list[0].HostIP, strconv.Itoa(list[0].GRPCPort)), append(serve.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(auth.Credentials(hostToken)))...)
	if err != nil {
		return nil, nil, err
	}
	return hostpb.NewHostServiceClient(c), func() { _ = c.Close() }, nil // nothing follows
}
