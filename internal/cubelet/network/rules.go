package network

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"text/template"
)

// rules shut sandboxes in. The first chain sees a packet before it is known
// whether it is for this machine or for another, so it holds also where the
// machine forwards nothing, and says no at once instead of letting it get lost.
var rules = template.Must(template.New("nft").Parse(`
table inet {{.Table}}
delete table inet {{.Table}}
table inet {{.Table}} {
	chain from {
		type filter hook prerouting priority 10; policy accept;
		iifname "{{.Links}}*" jump shut
	}
	chain shut {
		ct state established,related accept
		meta l4proto tcp reject with tcp reset
		reject with icmpx type admin-prohibited
	}
	chain to {
		type filter hook forward priority 0; policy accept;
		iifname "{{.Links}}*" drop
		oifname "{{.Links}}*" drop
	}
}
`))

// Open lays the rules that shut sandboxes in.
func (p *Pool) Open(ctx context.Context) error {
	var script bytes.Buffer
	if err := rules.Execute(&script, map[string]string{"Table": p.table(), "Links": p.prefix()}); err != nil {
		return err
	}
	return nft(ctx, &script, "-f", "-")
}

// Close removes the rules.
func (p *Pool) Close(ctx context.Context) error {
	return nft(ctx, strings.NewReader(""), "delete", "table", "inet", p.table())
}

func nft(ctx context.Context, in io.Reader, args ...string) error {
	c := exec.CommandContext(ctx, "nft", args...)
	c.Stdin = in
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
