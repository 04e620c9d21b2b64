package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// FileVariable names the configuration file when no flag does.
const FileVariable = "PADDOCK_CONFIG"

// others are variables that begin like settings and are read elsewhere.
var others = []string{FileVariable, "PADDOCK_ADDRESS", "PADDOCK_FAILPOINTS", "PADDOCK_OUTPUT"}

// rename is an older spelling of a variable. When the two count in other units,
// the old one's value is divided by per.
type rename struct {
	old, new string
	per      int64
}

// legacy are older spellings: they work, are reported, and lose to the new
// name (spec/template-center 5.3). Of two old names of one variable the first
// in the table wins. Every CUBE_TEMPLATE_CENTER_X may besides be spelt
// CUBE_TC_X; see renames.
var legacy = []rename{
	{old: "CUBE_TC_CALLBACK_TOKEN", new: "CUBE_TEMPLATE_CALLBACK_TOKEN"},
	{old: "CUBE_TC_ADDR", new: "CUBE_TEMPLATE_CENTER_ADDR"},
	{old: "CUBE_TEMPLATE_CENTER_MASTER_ENDPOINT", new: "CUBE_MASTER_ADDR"},
	{old: "CUBE_MASTER_ENDPOINT", new: "CUBE_MASTER_ADDR"},
	{old: "CUBE_TEMPLATE_CENTER_CONFIG_PATH", new: FileVariable},
	{old: "CUBE_MASTER_CONFIG_PATH", new: FileVariable},
	{old: "CUBEMASTER_ROOTFS_ARTIFACT_STORE_DIR", new: "CUBE_TEMPLATE_CENTER_ARTIFACT_STORE_DIR"},
	{old: "CUBEMASTER_ROOTFS_ARTIFACT_DIR", new: "CUBE_TEMPLATE_CENTER_ARTIFACT_WORK_DIR"},
	{old: "CUBE_TEMPLATE_CENTER_RECONCILE_STALE_AFTER", new: "CUBE_TEMPLATE_CENTER_RECONCILE_PENDING_STALE_AFTER"},
	{old: "CUBE_TEMPLATE_CENTER_RECONCILE_STALE_AFTER", new: "CUBE_TEMPLATE_CENTER_RECONCILE_PULLING_STALE_AFTER"},
	{old: "CUBE_TEMPLATE_CENTER_RECONCILE_STALE_AFTER", new: "CUBE_TEMPLATE_CENTER_RECONCILE_RUNNING_STALE_AFTER"},
	{old: "CUBE_TEMPLATECENTER_LAYER_CACHE_DIR", new: "PADDOCK_LAYER_CACHE_DIR"},
	{old: "CUBE_TEMPLATECENTER_LAYER_CACHE_QUOTA_BYTES", new: "PADDOCK_LAYER_CACHE_QUOTA_MIB", per: 1 << 20},
}

// idle are variables of the system whose names we keep that nothing here
// reads, and why. They are reported, so that nobody believes in them.
var idle = map[string]string{
	"CUBE_TEMPLATE_CENTER_LOOP_MOUNT_EXT4_ENABLED": "images are made without loop devices",
	"CUBEMASTER_LOOP_MOUNT_EXT4_ENABLED":           "images are made without loop devices",
	"CUBE_TEMPLATE_CENTER_RECONCILE_DISABLED":      "stalled jobs always end",
	"CUBE_MASTER_IMAGE_JOB_RECONCILE_DISABLED":     "stalled jobs always end",
	"CUBEMASTER_NATIVE_ROOTFS_EXPORT_ENABLED":      "there is one way to make images",
	"CUBEMASTER_NATIVE_ROOTFS_EXPORT_JOBS":         "there is one way to make images",
	"CUBEMASTER_EXT4_OVERHEAD_PERCENT":             "images are sized from their entries",
	"CUBEMASTER_EXT4_FIXED_OVERHEAD_MIB":           "images are sized from their entries",
	"CUBE_TEMPLATE_CENTER_NODE_IP":                 "templatecenter.listen says where it listens",
	"CUBE_SANDBOX_NODE_IP":                         "cubelet.host_ip and templatecenter.listen say it for each role",
}

// environment is what the process was given, seen through the old names.
type environment struct {
	vars    map[string]string // set variables, by their new names
	spelt   map[string]string // new name -> the old name that gave its value
	notices []string
}

// readEnviron takes KEY=value pairs. An empty value counts as unset.
func readEnviron(environ []string, fields []field) *environment {
	e := &environment{vars: map[string]string{}, spelt: map[string]string{}}
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok && v != "" {
			e.vars[k] = v
		}
	}
	for _, r := range renames(fields) {
		e.rename(r)
	}
	e.reportUnread(fields)
	return e
}

// renames is the whole table of older spellings.
func renames(fields []field) []rename {
	all := slices.Clone(legacy)
	for _, f := range fields {
		if rest, ok := strings.CutPrefix(f.env, "CUBE_TEMPLATE_CENTER_"); ok {
			if r := (rename{old: "CUBE_TC_" + rest, new: f.env}); !slices.Contains(all, r) {
				all = append(all, r)
			}
		}
	}
	return all
}

func (e *environment) rename(r rename) {
	old, ok := e.vars[r.old]
	if !ok {
		return
	}
	if r.per > 0 {
		n, err := strconv.ParseInt(old, 10, 64)
		if err != nil || n < r.per {
			e.notice("%s has no effect: %.40q is not at least %d; set %s", r.old, old, r.per, r.new)
			return
		}
		old = strconv.FormatInt(n/r.per, 10)
	}
	switch now, both := e.vars[r.new]; {
	case !both:
		e.vars[r.new], e.spelt[r.new] = old, r.old
		e.notice("%s is the old name of %s: rename it", r.old, r.new)
	case now != old:
		winner := r.new
		if first := e.spelt[r.new]; first != "" {
			winner = first
		}
		e.notice("%s is ignored: %s says otherwise and wins", r.old, winner)
	default:
		e.notice("%s is the old name of %s and says the same: remove it", r.old, r.new)
	}
}

// reportUnread tells of variables that look like ours and change nothing: a
// misspelt one would else be ignored in silence.
func (e *environment) reportUnread(fields []field) {
	known := slices.Clone(others)
	for _, f := range fields {
		known = append(known, f.env)
	}
	for _, r := range renames(fields) {
		known = append(known, r.old)
	}
	var unread []string
	for k := range e.vars {
		if why, ok := idle[k]; ok {
			unread = append(unread, fmt.Sprintf("%s has no effect: %s", k, why))
		} else if !slices.Contains(known, k) && ours(k) {
			unread = append(unread, fmt.Sprintf("%s is no setting and has no effect; the nearest is %s", k, nearest(k, slices.Clone(known))))
		}
	}
	slices.Sort(unread)
	e.notices = append(e.notices, unread...)
}

func ours(name string) bool {
	return slices.ContainsFunc([]string{"PADDOCK_", "CUBE_TEMPLATE_", "CUBE_TEMPLATECENTER_", "CUBE_TC_", "CUBE_S3_", "CUBE_MASTER_", "CUBEMASTER_", "CUBE_ARTIFACT_"}, func(p string) bool { return strings.HasPrefix(name, p) })
}

func (e *environment) notice(format string, args ...any) {
	e.notices = append(e.notices, fmt.Sprintf(format, args...))
}

// apply changes the settings that have a variable.
func (e *environment) apply(fields []field, from sources) []error {
	var faults []error
	for _, f := range fields {
		text, ok := e.vars[f.env]
		if !ok || f.env == "" {
			continue
		}
		name := f.env
		if old := e.spelt[f.env]; old != "" {
			name = old
		}
		if err := f.set(text); err != nil {
			faults = append(faults, fmt.Errorf("%s, from %s: %w", f.key, name, err))
			continue
		}
		from[f.key] = "environment " + name
	}
	return faults
}
