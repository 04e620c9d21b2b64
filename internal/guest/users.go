package guest

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// account is a user of the image, read from its files: the guest is static and
// knows no libc.
type account struct {
	name     string
	uid, gid uint32
	groups   []uint32
	home     string
}

type accounts struct{ passwd, group string }

// find returns the account called name or with that uid. root is always known:
// an image may have no users at all.
func (a accounts) find(name string) (account, error) {
	found := account{}
	err := lines(a.passwd, func(f []string) bool {
		if len(f) < 6 || (f[0] != name && f[2] != name) {
			return false
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil {
			return false
		}
		found = account{name: f[0], uid: uint32(uid), gid: uint32(gid), home: f[5]}
		return true
	})
	switch {
	case found.name != "":
	case name == "root" || name == "0":
		found = account{name: "root", home: "/root"}
	case err != nil:
		return account{}, err
	default:
		return account{}, fmt.Errorf("invalid username: '%s'", name)
	}
	found.groups = []uint32{found.gid}
	_ = lines(a.group, func(f []string) bool { // an image without groups has none
		if len(f) < 4 {
			return false
		}
		for _, member := range strings.Split(f[3], ",") {
			if gid, err := strconv.ParseUint(f[2], 10, 32); err == nil && member == found.name {
				found.groups = append(found.groups, uint32(gid))
			}
		}
		return false
	})
	if found.home == "" {
		found.home = "/"
	}
	return found, nil
}

// lines calls each with the fields of every line of path until it returns true.
func lines(path string, each func([]string) bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if each(strings.Split(s.Text(), ":")) {
			return nil
		}
	}
	return nil
}
