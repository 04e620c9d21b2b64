package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/token"
	"github.com/spf13/cobra"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/id"
)

// maxRequest is what the master takes of a body.
const maxRequest = 1 << 20

// networkFlags are what sandboxes may reach.
type networkFlags struct {
	internet    bool
	allow, deny []string
}

func (n *networkFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&n.internet, "allow-internet-access", false, "let sandboxes reach every public address")
	f.StringSliceVar(&n.allow, "allow-out-cidr", nil, "address or network that sandboxes may reach; a private one must be named itself")
	f.StringSliceVar(&n.deny, "deny-out-cidr", nil, "address or network that they may not reach, unless --allow-out-cidr has it")
}

// config returns what the flags say; nil when none was given.
func (n *networkFlags) config(c *cobra.Command) *cubeapi.NetworkConfig {
	given := c.Flags().Changed("allow-internet-access")
	if !given && len(n.allow)+len(n.deny) == 0 {
		return nil
	}
	config := &cubeapi.NetworkConfig{AllowOut: n.allow, DenyOut: n.deny}
	if given {
		config.AllowInternetAccess = &n.internet
	}
	return config
}

// requestFile reads a request, in YAML or JSON, from a file or standard input.
func (a *app) requestFile(name string) (map[string]any, error) {
	in := a.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fault.Wrap(fault.InvalidInput, err, "--file")
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxRequest+1))
	if err != nil {
		return nil, fault.Wrap(fault.InvalidInput, err, "--file %s", name)
	}
	if len(b) > maxRequest {
		return nil, fault.New(fault.InvalidInput, "--file %s: over %d bytes", name, maxRequest)
	}
	var request map[string]any
	if !json.Valid(b) {
		if err := plainYAML(b); err != nil {
			return nil, fmt.Errorf("--file %s: %w", name, err)
		}
		if b, err = yaml.YAMLToJSON(b); err != nil {
			return nil, fault.Wrap(fault.InvalidInput, errors.New(yaml.FormatError(err, false, false)), "--file %s: neither YAML nor JSON", name)
		}
	}
	if err := json.Unmarshal(b, &request); err != nil || request == nil {
		return nil, fault.New(fault.InvalidInput, "--file %s: must be an object, as docs/api.md has it", name)
	}
	return request, nil
}

// maxNesting is how deep lists and maps in brackets may lie in each other.
const maxNesting = 100

// plainYAML refuses what lets a few bytes stand for very many.
func plainYAML(b []byte) error {
	depth := 0
	for _, t := range lexer.Tokenize(string(b)) {
		switch t.Type {
		case token.AnchorType, token.AliasType:
			return fault.New(fault.InvalidInput, "line %d: a request has no anchors (&) and aliases (*): write out what they stand for", t.Position.Line)
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		}
		if depth > maxNesting {
			return fault.New(fault.InvalidInput, "line %d: over %d brackets in each other", t.Position.Line, maxNesting)
		}
	}
	return nil
}

func (a *app) warn(list []string) {
	for _, w := range list {
		fmt.Fprintln(a.stderr, "Warning:", w)
	}
}

func (a *app) templateCreateCommand() *cobra.Command {
	var file, alias, instanceType string
	var nodes []string
	var network networkFlags
	c := &cobra.Command{Use: "create", Short: "Make a template of an artifact that is there, from a whole create request", Args: args(0, 0), RunE: func(c *cobra.Command, _ []string) error {
		if file == "" {
			return fault.New(fault.InvalidInput, "--file is missing")
		}
		request, err := a.requestFile(file)
		if err != nil {
			return err
		}
		for field, flag := range map[string]string{"alias": alias, "instance_type": instanceType} {
			if flag != "" {
				request[field] = flag
			}
		}
		if len(nodes) > 0 {
			request["distribution_scope"] = nodes
		}
		if config := network.config(c); config != nil {
			delete(request, "cubevs_context")
			request["cube_network_config"] = config
		}
		if _, said := request["requestID"]; !said {
			request["requestID"] = id.New("cli-")
		}
		return a.with(func(api *cubeapi.Client) error {
			t, err := api.CreateTemplate(c.Context(), request)
			if err != nil {
				return err
			}
			a.warn(t.Warnings)
			return a.show(t.Template, func(w io.Writer) { printTemplate(w, t.Template) })
		})
	}}
	f := c.Flags()
	f.StringVarP(&file, "file", "f", "", "request in YAML or JSON; - reads standard input (required)")
	f.StringVar(&alias, "alias", "", "stable name of the template")
	f.StringVar(&instanceType, "instance-type", "", "kind of host")
	f.StringSliceVar(&nodes, "node", nil, "host to distribute to (default: all healthy ones)")
	network.add(c)
	return c
}

func (a *app) renderCommand() *cobra.Command {
	var file, name string
	c := &cobra.Command{Use: "render [TEMPLATE]", Short: "Show what a create of a sandbox would do, without making one", Args: args(0, 1), RunE: func(c *cobra.Command, given []string) error {
		request := map[string]any{}
		if file != "" {
			var err error
			if request, err = a.requestFile(file); err != nil {
				return err
			}
		}
		if name == "" && len(given) > 0 {
			name = given[0]
		}
		if name != "" {
			request["template_id"] = name
		}
		if len(request) == 0 {
			return fault.New(fault.InvalidInput, "--file or --template-id is missing")
		}
		return a.with(func(api *cubeapi.Client) error {
			p, err := api.Preview(c.Context(), request)
			if err != nil {
				return err
			}
			a.warn(p.Warnings)
			var failed error
			err = a.show(p, func(w io.Writer) {
				for _, part := range []struct {
					name string
					v    any
				}{{"api_request", p.APIRequest}, {"merged_request", p.MergedRequest}, {"cubelet_request", p.CubeletRequest}} {
					b, err := json.MarshalIndent(part.v, "", "  ")
					failed = errors.Join(failed, err)
					fmt.Fprintf(w, "%s:\n%s\n", part.name, b)
				}
			})
			return errors.Join(err, failed)
		})
	}}
	c.Flags().StringVarP(&file, "file", "f", "", "request of a sandbox in YAML or JSON; - reads standard input")
	c.Flags().StringVar(&name, "template-id", "", "template, by id or alias, as the argument")
	return c
}
