package master

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/paddock-dev/paddock/internal/cubeapi"
	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/hostpb"
	"github.com/paddock-dev/paddock/internal/store"
	"github.com/paddock-dev/paddock/internal/store/sandboxdb"
)

const (
	networkType    = "tap"
	backend        = "xfs" // hosts keep writes in a file of their own; the name is what tools call that
	maxOut         = 256   // entries of allowOut and of denyOut
	maxDNS         = 3     // servers that a resolver asks
	maxSearches    = 6
	maxOptions     = 16
	maxAnnotations = 64
	maxAnnotation  = 4096 // bytes of one
	maxOpenFiles   = 1 << 20
	minOpenFiles   = 64
	maxUser        = 1<<31 - 1
)

// checkRequestID refuses an id that cannot be shown or stored as it is.
func checkRequestID(id string) error {
	if len(id) > maxRequestID {
		return fault.New(fault.InvalidInput, "requestID has %d characters, at most %d", len(id), maxRequestID)
	}
	if i := strings.IndexFunc(id, unicode.IsControl); i >= 0 || !isText(id) {
		return fault.New(fault.InvalidInput, "requestID %q: must be text without control characters", id)
	}
	return nil
}

func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// isName is isText without what moves a terminal's cursor.
func isName(s string) bool { return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) }

// checkFields refuses what a build request asks for and no sandbox would have.
// What older tools call otherwise is given its name, so that one request is
// stored in one way.
func checkFields(r *cubeapi.FromImageRequest) error {
	name, err := oneOf("alias", r.Alias, "display_name", r.DisplayName)
	if err != nil {
		return err
	}
	r.Alias, r.DisplayName, r.Wait = name, "", false
	switch {
	case r.TemplateID != "":
		return fault.New(fault.Unsupported, "template_id %.64q: the id of a template is given by the server; alias is a name of your own", r.TemplateID)
	case r.NetworkType != networkType:
		return fault.New(fault.Unsupported, "network_type %.64q: %s is the only one", r.NetworkType, networkType)
	case r.Backend != "" && r.Backend != backend:
		return fault.New(fault.Unsupported, "backend %.64q: %s is the only one; what a sandbox writes is kept on its host", r.Backend, backend)
	case r.EnableIvshmem != nil && *r.EnableIvshmem:
		return fault.New(fault.Unsupported, "enable_ivshmem: sandboxes share no memory with their host")
	}
	r.Backend, r.EnableIvshmem = "", nil
	if r.Network, r.OldNetwork, err = oneNetwork(r.Network, r.OldNetwork); err != nil {
		return err
	}
	return checkOverrides(r.Overrides)
}

// oneOf returns what two names of one field say, which must not differ.
func oneOf(name, value, older, old string) (string, error) {
	if value != "" && old != "" && value != old {
		return "", fault.New(fault.InvalidInput, "%s %.64q and %s %.64q: they are two names of one field", name, value, older, old)
	}
	return cmp.Or(value, old), nil
}

// oneNetwork returns the policy of a request, which older tools call otherwise,
// in its only form.
func oneNetwork(now, old *cubeapi.NetworkConfig) (one, none *cubeapi.NetworkConfig, err error) {
	if now != nil && old != nil {
		return nil, nil, fault.New(fault.InvalidInput, "cube_network_config and cubevs_context: they are two names of one field")
	}
	if now == nil {
		now = old
	}
	if now == nil {
		return nil, nil, nil
	}
	c := *now
	switch {
	case len(c.Rules) > 0:
		return nil, nil, fault.New(fault.Unsupported, "cube_network_config.rules: requests are not looked into; allow or deny addresses")
	case c.AllowPublicTraffic != nil && !*c.AllowPublicTraffic:
		return nil, nil, fault.New(fault.Unsupported, "cube_network_config.allowPublicTraffic: false is not offered; nobody but its host reaches a sandbox")
	case c.MaskRequestHost != "":
		return nil, nil, fault.New(fault.Unsupported, "cube_network_config.maskRequestHost is not offered")
	}
	c.AllowPublicTraffic = nil
	if c.AllowOut, err = networks("allowOut", c.AllowOut); err != nil {
		return nil, nil, err
	}
	for _, a := range c.AllowOut {
		if p := netip.MustParsePrefix(a); unreachable(p) {
			return nil, nil, fault.New(fault.InvalidInput, "allowOut %s: no sandbox reaches its host's own, link-local or multicast addresses", a)
		}
	}
	c.DenyOut, err = networks("denyOut", c.DenyOut)
	return &c, nil, err
}

// unreachable reports whether no policy opens p: see network.Policy.
func unreachable(p netip.Prefix) bool {
	a := p.Addr()
	first := a.As4()[0]
	return p.Bits() >= 8 && first == 0 || a.IsLoopback() || p.Bits() >= 16 && a.IsLinkLocalUnicast() || p.Bits() >= 3 && first >= 224
}

// hostName is what looks like the name of a host, or of many.
var hostName = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?$`)

// networks reads addresses and networks of IPv4. Sandboxes have no other, so
// IPv6 is denied already, and cannot be allowed.
func networks(field string, list []string) (all []string, err error) {
	if len(list) > maxOut {
		return nil, fault.New(fault.InvalidInput, "%s has %d entries, at most %d", field, len(list), maxOut)
	}
	for _, s := range list {
		p, ok := network(s)
		switch {
		case !ok && strings.ContainsFunc(s, unicode.IsLetter) && hostName.MatchString(s):
			return nil, fault.New(fault.Unsupported, "%s %.253q: names are not followed; give addresses or networks such as 192.0.2.0/24", field, s)
		case !ok:
			return nil, fault.New(fault.InvalidInput, "%s %.253q: must be an address or a network such as 192.0.2.0/24", field, s)
		case p.Addr().Is4():
			all = append(all, p.Masked().String())
		case field == "allowOut":
			return nil, fault.New(fault.Unsupported, "allowOut %s: sandboxes have no IPv6", s)
		}
	}
	return all, nil
}

func network(s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	return p, err == nil && !p.Addr().Is4In6()
}

func checkOverrides(o *cubeapi.ContainerOverride) error {
	if o == nil {
		return nil
	}
	for _, v := range o.VolumeMounts {
		if path.Clean("/"+v.ContainerPath) == "/" {
			return fault.New(fault.InvalidInput, "volume_mounts %.64q: / is the template itself", v.Name)
		}
	}
	if len(o.VolumeMounts) > 0 {
		return fault.New(fault.Unsupported, "volume_mounts %.64q: sandboxes have no volumes", o.VolumeMounts[0].Name)
	}
	if strings.ContainsRune(o.WorkingDir, 0) || o.WorkingDir != "" && !path.IsAbs(o.WorkingDir) {
		return fault.New(fault.InvalidInput, "working_dir %.128q: must be an absolute path", o.WorkingDir)
	}
	if err := checkAnnotations(o.Annotations); err != nil {
		return err
	}
	if _, err := userOf(o.Security); err != nil {
		return err
	}
	return checkLimits(o.DNS, o.RLimit, o.Resources)
}

func checkLimits(d *cubeapi.DNSConfig, l *cubeapi.RLimit, q *cubeapi.Quantity) error {
	if l != nil && l.NoFile != 0 && (l.NoFile < minOpenFiles || l.NoFile > maxOpenFiles) {
		return fault.New(fault.InvalidInput, "r_limit.no_file %d: must be %d to %d", l.NoFile, minOpenFiles, maxOpenFiles)
	}
	if q != nil && q.Limit != nil {
		if lim := *q.Limit; lim.CPU != "" && lim.CPU != q.CPU || lim.Mem != "" && lim.Mem != q.Mem {
			return fault.New(fault.Unsupported, "resources.limit: a sandbox is limited to its cpu and mem; say the same, or leave it out")
		}
	}
	return checkDNS(d)
}

func checkDNS(d *cubeapi.DNSConfig) error {
	if d == nil {
		return nil
	}
	if len(d.Servers) > maxDNS || len(d.Searches) > maxSearches || len(d.Options) > maxOptions {
		return fault.New(fault.InvalidInput, "dns_config: at most %d servers, %d searches, %d options", maxDNS, maxSearches, maxOptions)
	}
	for _, s := range d.Servers {
		if a, err := netip.ParseAddr(s); err != nil || !a.Is4() {
			return fault.New(fault.InvalidInput, "dns_config: server %.64q must be an address of IPv4", s)
		}
	}
	for _, s := range slices.Concat(d.Searches, d.Options) {
		if s == "" || len(s) > 253 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '#' || r == ';' }) {
			return fault.New(fault.InvalidInput, "dns_config: %.64q is no search domain or option", s)
		}
	}
	return nil
}

// userOf returns who a sandbox's programs run as, as the guest takes it; empty:
// as the image says.
func userOf(c *cubeapi.SecurityContext) (string, error) {
	if c == nil {
		return "", nil
	}
	refuse := func(field, why string) (string, error) {
		return "", fault.New(fault.Unsupported, "security_context.%s: %s", field, why)
	}
	switch caps := c.Capabilities; {
	case c.Privileged:
		return refuse("privileged", "root of a sandbox has a kernel of its own, and nothing of the host's")
	case c.NoNewPrivs:
		return refuse("no_new_privs", "not offered; refuse setuid files when the template is built instead")
	case c.ReadonlyRootfs:
		return refuse("readonly_rootfs", "not offered; what a sandbox writes is its own and goes with it")
	case caps != nil && len(caps.Add)+len(caps.Drop)+len(caps.AddAmbient) > 0:
		return refuse("capabilities", "every sandbox has the same; run as another user instead")
	case c.RunAsUsername != "" && c.RunAsUser != nil:
		return "", fault.New(fault.InvalidInput, "security_context: run_as_user and run_as_username")
	case len(c.RunAsUsername) > 64 || strings.ContainsFunc(c.RunAsUsername, func(r rune) bool { return r <= ' ' || r == ':' || r == unicode.ReplacementChar }):
		return "", fault.New(fault.InvalidInput, "security_context.run_as_username %.64q", c.RunAsUsername)
	}
	user := c.RunAsUsername
	for _, id := range []*cubeapi.IntValue{c.RunAsUser, c.RunAsGroup} {
		if id != nil && (id.Value < 0 || id.Value > maxUser) {
			return "", fault.New(fault.InvalidInput, "security_context: user or group %d", id.Value)
		}
	}
	if c.RunAsUser != nil {
		user = fmt.Sprint(c.RunAsUser.Value)
	}
	if c.RunAsGroup == nil {
		return user, nil
	}
	if user == "" {
		return "", fault.New(fault.InvalidInput, "security_context: run_as_group without a user")
	}
	return fmt.Sprintf("%s:%d", user, c.RunAsGroup.Value), nil
}

// egress lays a request's policy over its template's: the internet as the
// request says if it does, the lists together.
func egress(t, r *cubeapi.NetworkConfig) *hostpb.Egress {
	e := &hostpb.Egress{}
	for _, c := range []*cubeapi.NetworkConfig{t, r} {
		if c == nil {
			continue
		}
		if c.AllowInternetAccess != nil {
			e.Internet = *c.AllowInternetAccess
		}
		e.Allow, e.Deny = append(e.Allow, c.AllowOut...), append(e.Deny, c.DenyOut...)
	}
	if !e.GetInternet() && len(e.GetAllow()) == 0 {
		return nil // nothing: whatever is denied is denied already
	}
	return e
}

// checkKind refuses an instance type that no host has, before an image is built
// for it. Hosts that are up may only be about to say so.
func (m *Master) checkKind(ctx context.Context, tx *store.Tx, kind string) error {
	all, err := sandboxdb.ListHosts(ctx, tx)
	if err != nil || len(all) == 0 || time.Since(m.began) < m.pace.hostGrace {
		return err
	}
	var kinds []string
	for _, f := range all {
		if f.InstanceType == kind {
			return nil
		}
		kinds = append(kinds, f.InstanceType)
	}
	slices.Sort(kinds)
	return fault.New(fault.NoTemplateHosts, "instance_type %.64q: no host serves it; hosts serve %s", kind, strings.Join(slices.Compact(kinds), ", "))
}

// resolver is what a sandbox's resolver is told: as the request says, else its
// template.
func resolver(t *cubeapi.ContainerOverride, asked []cubeapi.Container) *hostpb.Resolver {
	var d *cubeapi.DNSConfig
	if t != nil {
		d = t.DNS
	}
	for _, c := range asked {
		if c.DNS != nil {
			d = c.DNS
		}
	}
	if d == nil {
		return nil
	}
	return &hostpb.Resolver{Servers: d.Servers, Searches: d.Searches, Options: d.Options}
}

// openFiles is resolver for the limit of open files.
func openFiles(t *cubeapi.ContainerOverride, asked []cubeapi.Container) (n uint64) {
	if t != nil && t.RLimit != nil {
		n = t.RLimit.NoFile
	}
	for _, c := range asked {
		if c.RLimit != nil && c.RLimit.NoFile != 0 {
			n = c.RLimit.NoFile
		}
	}
	return n
}

// warnings tell of what in a request has no effect.
func warnings(unknown []string) (list []string) {
	for _, f := range unknown {
		list = append(list, fmt.Sprintf("unknown field %q was ignored", f))
	}
	return list
}
