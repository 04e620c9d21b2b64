package guest

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	"github.com/paddock-dev/paddock/internal/envdpb"
	"github.com/paddock-dev/paddock/internal/fault"
)

// defaultPath is searched when the sandbox names no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// launch is what a start needs.
type launch struct {
	config *envdpb.ProcessConfig
	user   account
	pty    *envdpb.PTY
	tag    *string
	stdin  bool
	ring   bool // keep the last output for whoever connects later
}

// program is a launch that was looked up.
type program struct {
	path string
	argv []string
	env  []string
	cwd  string
}

func prepare(v values, l launch) (program, error) {
	env, err := environment(v, l)
	if err != nil {
		return program{}, err
	}
	cwd, err := workdir(v, l)
	if err != nil {
		return program{}, err
	}
	name := l.config.GetCmd()
	if strings.ContainsRune(name+strings.Join(l.config.GetArgs(), ""), 0) {
		return program{}, badInput("an argument holds a zero byte")
	}
	path, err := lookUp(name, env["PATH"], cwd)
	if err != nil {
		return program{}, err
	}
	p := program{path: path, argv: append([]string{name}, l.config.GetArgs()...), cwd: cwd}
	for _, key := range slices.Sorted(maps.Keys(env)) {
		p.env = append(p.env, key+"="+env[key])
	}
	return p, nil
}

// environment is, each over the one before: the guest's own, the user's, the
// sandbox's, the request's.
func environment(v values, l launch) (map[string]string, error) {
	env := map[string]string{}
	for _, kv := range v.base {
		if key, value, ok := strings.Cut(kv, "="); ok && key != "" {
			env[key] = value
		}
	}
	if env["PATH"] == "" {
		env["PATH"] = defaultPath
	}
	env["HOME"], env["USER"], env["LOGNAME"] = l.user.home, l.user.name, l.user.name
	maps.Copy(env, v.envs)
	for key, value := range l.config.GetEnvs() {
		if err := checkEnv(key, value); err != nil {
			return nil, err
		}
		env[key] = value
	}
	return env, nil
}

// workdir is where a process starts. A directory that was asked for must be
// there; the default ones need not, as images leave homes out.
func workdir(v values, l launch) (string, error) {
	asked := l.config.GetCwd()
	path, err := resolve(asked, v.workdir, l.user)
	if err != nil {
		return "", err
	}
	switch info, err := os.Stat(path); {
	case err == nil && info.IsDir():
		return path, nil
	case asked == "":
		return "/", nil
	case err == nil:
		return "", badInput("cwd '%s' is not a directory", path)
	case errors.Is(err, fs.ErrNotExist):
		return "", badInput("cwd '%s' does not exist", path)
	default:
		return "", ofFile(path, err)
	}
}

// lookUp finds the program called name as a shell in cwd would.
func lookUp(name, path, cwd string) (string, error) {
	if name == "" {
		return "", badInput("the command is empty")
	}
	dirs := []string{""}
	if !strings.Contains(name, "/") {
		dirs = filepath.SplitList(path)
	}
	denied := ""
	for _, dir := range dirs {
		file := filepath.Join(dir, name)
		if !filepath.IsAbs(file) {
			file = filepath.Join(cwd, file)
		}
		switch info, err := os.Stat(file); {
		case err != nil || info.IsDir() && len(dirs) > 1:
		case info.Mode().IsRegular() && info.Mode()&0o111 != 0:
			return file, nil
		default:
			denied = file
		}
	}
	if denied != "" {
		return "", refuse(connect.CodePermissionDenied, fault.InvalidInput, "'%s' is not an executable file", denied)
	}
	return "", refuse(connect.CodeNotFound, fault.CommandNotFound, "command not found: '%s'", name)
}

// fork starts p as u on files, the child's first descriptors, in a session of
// its own, so that it can be signalled with all that it starts.
func (p program) fork(u account, files []uintptr, terminal bool) (int, error) {
	attr := &syscall.ProcAttr{Dir: p.cwd, Env: p.env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: terminal, Ctty: 0}}
	if int(u.uid) != os.Getuid() || int(u.gid) != os.Getgid() {
		attr.Sys.Credential = &syscall.Credential{Uid: u.uid, Gid: u.gid, Groups: u.groups}
	}
	pid, err := syscall.ForkExec(p.path, p.argv, attr)
	if err == nil {
		return pid, nil
	}
	switch {
	case errors.Is(err, syscall.ENOENT):
		// The file was there a moment ago: its interpreter or loader is not.
		return 0, refuse(connect.CodeNotFound, fault.CommandNotFound, "command not found: the interpreter of '%s' does not exist", p.path)
	case errors.Is(err, syscall.ENOEXEC):
		return 0, badInput("'%s' is not a program of this machine", p.path)
	case errors.Is(err, syscall.E2BIG):
		return 0, badInput("the arguments and the environment are too long")
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return 0, refuse(connect.CodePermissionDenied, fault.InvalidInput, "user '%s' may not run '%s' in '%s'", u.name, p.path, p.cwd)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return 0, refuse(connect.CodeResourceExhausted, fault.RuntimeFailed, "the sandbox has no room for another process: %s", err.Error())
	}
	return 0, refuse(connect.CodeInternal, fault.RuntimeFailed, "start '%s': %s", p.path, err.Error())
}

// session lists the processes of the session that pid leads.
func session(leader int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var list []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// The name in parentheses may hold anything; after it: state, parent,
		// group, session.
		f := strings.Fields(string(b[max(0, strings.LastIndexByte(string(b), ')')+1):]))
		if len(f) > 3 && f[3] == strconv.Itoa(leader) {
			list = append(list, pid)
		}
	}
	return list
}
