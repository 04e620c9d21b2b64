package guest

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	maxAccountFile = 4 << 20   // bytes of /etc/passwd or /etc/group that are read
	maxAccountLine = 256 << 10 // one group may list many members
)

// account is a user of the image. The guest is static and knows no libc, so
// it reads the files itself.
type account struct {
	name     string
	uid, gid uint32
	groups   []uint32
	home     string
}

// accounts names the two files that hold the users of the image. They are read
// for each request: whoever works in the sandbox may add users.
type accounts struct{ passwd, group string }

// find returns the account that name means: a name or a uid, each with an
// optional `:group` as in an image's configuration. root is always known, as
// an image may have no users at all, and so is every uid.
func (a accounts) find(name string) (account, error) {
	who, group, hasGroup := strings.Cut(name, ":")
	found, known := a.user(who)
	if !known {
		uid, err := strconv.ParseUint(who, 10, 32)
		switch {
		case who == "root" || err == nil && uid == 0:
			found = account{name: "root", home: "/root"}
		case err == nil:
			found = account{name: who, uid: uint32(uid), home: "/"}
		default:
			return account{}, refuse(connect.CodeUnauthenticated, fault.InvalidInput, "invalid username: '%s'", name)
		}
	}
	if hasGroup {
		gid, ok := a.gid(group)
		if !ok {
			return account{}, refuse(connect.CodeUnauthenticated, fault.InvalidInput, "invalid username: '%s': no such group", name)
		}
		found.gid = gid
	}
	found.groups = a.memberships(found)
	return found, nil
}

func (a accounts) user(who string) (found account, known bool) {
	eachLine(a.passwd, func(f []string) bool {
		if len(f) < 6 || f[0] == "" || f[0] != who && f[2] != who {
			return false
		}
		uid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			return false
		}
		gid, err := strconv.ParseUint(f[3], 10, 32)
		if err != nil {
			return false
		}
		found = account{name: f[0], uid: uint32(uid), gid: uint32(gid), home: "/"}
		if filepath.IsAbs(f[5]) {
			found.home = filepath.Clean(f[5])
		}
		known = true
		return true
	})
	return found, known
}

func (a accounts) gid(group string) (gid uint32, ok bool) {
	if n, err := strconv.ParseUint(group, 10, 32); err == nil {
		return uint32(n), true
	}
	eachLine(a.group, func(f []string) bool {
		if len(f) < 3 || f[0] != group {
			return false
		}
		n, err := strconv.ParseUint(f[2], 10, 32)
		gid, ok = uint32(n), err == nil
		return ok
	})
	return gid, ok
}

// memberships lists the groups of u, its own first.
func (a accounts) memberships(u account) []uint32 {
	list := []uint32{u.gid}
	eachLine(a.group, func(f []string) bool {
		if len(f) < 4 || !slices.Contains(strings.Split(f[3], ","), u.name) {
			return false
		}
		if gid, err := strconv.ParseUint(f[2], 10, 32); err == nil && !slices.Contains(list, uint32(gid)) {
			list = append(list, uint32(gid))
		}
		return false
	})
	return list
}

// names tells the names of owners. Each file is read once; make one for one
// answer.
type names struct{ users, groups map[uint32]string }

func (a accounts) names() names {
	n := names{users: map[uint32]string{}, groups: map[uint32]string{}}
	fill := func(path string, into map[uint32]string) {
		eachLine(path, func(f []string) bool {
			if len(f) < 3 {
				return false
			}
			id, err := strconv.ParseUint(f[2], 10, 32)
			if _, seen := into[uint32(id)]; err == nil && !seen {
				into[uint32(id)] = f[0]
			}
			return false
		})
		if into[0] == "" {
			into[0] = "root"
		}
	}
	fill(a.passwd, n.users)
	fill(a.group, n.groups)
	return n
}

// nameIn returns the name of id, or its digits.
func nameIn(table map[uint32]string, id uint32) string {
	if name, ok := table[id]; ok {
		return name
	}
	return strconv.FormatUint(uint64(id), 10)
}

// eachLine calls visit with the fields of each line of path until it returns
// true. A file that is not there has no lines: an image may have no users.
func eachLine(path string, visit func(fields []string) bool) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxAccountFile))
	lines.Buffer(nil, maxAccountLine)
	for lines.Scan() {
		if visit(strings.Split(strings.TrimSpace(lines.Text()), ":")) {
			return
		}
	}
}
