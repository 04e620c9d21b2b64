package guest

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/fsnotify/fsnotify"

	"github.com/paddock-dev/paddock/internal/envdpb"
	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	mostWatched  = 8192      // directories of one watcher
	mostWatchers = 64        // that wait to be fetched from
	mostPending  = 16384     // events that one of those keeps
	watcherIdle  = time.Hour // after which one that nobody fetches from is closed
)

// watcher turns the kernel's events below one directory into the API's.
type watcher struct {
	g            *Guest
	dir          string
	recursive    bool
	includeEntry bool
	kernel       *fsnotify.Watcher
	watched      map[string]bool // used by one goroutine
}

type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
	GetAllowNetworkMounts() bool
}

func (a *fileAPI) watcher(u string, m watchRequest) (*watcher, error) {
	user, err := a.g.owner(u)
	if err != nil {
		return nil, err
	}
	dir, err := resolve(m.GetPath(), a.g.settings.current().workdir, user)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, ofFile(dir, err)
	}
	if !info.IsDir() {
		return nil, badInput("path '%s' is not a directory", dir)
	}
	if kind := remoteKind(dir); kind != "" && !m.GetAllowNetworkMounts() {
		return nil, badInput("path '%s' is on a network file system (%s), whose changes are not told", dir, kind)
	}
	kernel, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, refuse(connect.CodeResourceExhausted, fault.RuntimeFailed, "watch '%s': %s", dir, err.Error())
	}
	w := &watcher{g: a.g, dir: dir, recursive: m.GetRecursive(), includeEntry: m.GetIncludeEntry(), kernel: kernel, watched: map[string]bool{}}
	if err := w.add(dir, func(*envdpb.FilesystemEvent) error { return nil }); err != nil {
		return nil, errors.Join(err, kernel.Close())
	}
	return w, nil
}

// add watches dir, and what is below it if that was asked for. What is found
// there is told to found: it came before the watch did.
func (w *watcher) add(dir string, found func(*envdpb.FilesystemEvent) error) error {
	fresh, err := w.watch(dir)
	if err != nil || !fresh || !w.recursive {
		return err
	}
	return w.scan(dir, found)
}

// watch has the kernel watch one directory, and reports whether it did not.
func (w *watcher) watch(dir string) (bool, error) {
	if w.watched[dir] {
		return false, nil
	}
	if len(w.watched) == mostWatched {
		return false, refuse(connect.CodeResourceExhausted, fault.InvalidInput, "more than %d directories to watch: watch a directory below", mostWatched)
	}
	switch err := w.kernel.Add(dir); {
	case errors.Is(err, syscall.ENOSPC):
		return false, refuse(connect.CodeResourceExhausted, fault.RuntimeFailed, "watch '%s': the kernel watches no more directories", dir)
	case err != nil:
		return false, ofFile(dir, err)
	}
	w.watched[dir] = true
	return true, nil
}

// scan tells what is in a directory that is watched. A directory is watched
// before it is told: who knows of it may change it at once.
func (w *watcher) scan(dir string, found func(*envdpb.FilesystemEvent) error) error {
	list, err := os.ReadDir(dir)
	if err != nil && len(list) == 0 {
		return ignoreGone(ofFile(dir, err))
	}
	for _, one := range list {
		path, fresh := filepath.Join(dir, one.Name()), false
		if one.IsDir() {
			if fresh, err = w.watch(path); ignoreGone(err) != nil {
				return err
			}
		}
		if err := found(w.event(path, envdpb.EventType_EVENT_TYPE_CREATE)); err != nil {
			return err
		}
		if fresh {
			if err := w.scan(path, found); err != nil {
				return err
			}
		}
	}
	return nil
}

// forget ends the watches of a directory that is gone under its name, and of
// what was below: they would tell names that are not so any more, and the
// library would end them later, under whatever name they have by then.
func (w *watcher) forget(dir string) {
	for path := range w.watched {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			_ = w.kernel.Remove(path) // the kernel may have done so
			delete(w.watched, path)
		}
	}
}

// ignoreGone: what goes away before it can be watched needs no watch.
func ignoreGone(err error) error {
	if errors.Is(err, fault.FileNotFound) {
		return nil
	}
	return err
}

var kinds = []struct {
	op   fsnotify.Op
	kind envdpb.EventType
}{
	{fsnotify.Create, envdpb.EventType_EVENT_TYPE_CREATE},
	{fsnotify.Write, envdpb.EventType_EVENT_TYPE_WRITE},
	{fsnotify.Remove, envdpb.EventType_EVENT_TYPE_REMOVE},
	{fsnotify.Rename, envdpb.EventType_EVENT_TYPE_RENAME},
	{fsnotify.Chmod, envdpb.EventType_EVENT_TYPE_CHMOD},
}

func (w *watcher) event(path string, kind envdpb.EventType) *envdpb.FilesystemEvent {
	e := &envdpb.FilesystemEvent{Name: within(w.dir, path), Type: kind}
	if w.includeEntry && kind != envdpb.EventType_EVENT_TYPE_REMOVE && kind != envdpb.EventType_EVENT_TYPE_RENAME {
		if entry, err := entryAt(path, w.g.users.names()); err == nil {
			e.Entry = entry
		}
	}
	return e
}

var errLost = refuse(connect.CodeDataLoss, fault.StateConflict, "events were lost: they came faster than they were read")

// run tells events until ctx ends or telling fails. quiet is called when the
// tick fires.
func (w *watcher) run(ctx context.Context, tell func(*envdpb.FilesystemEvent) error, tick <-chan time.Time, quiet func() error) error {
	defer w.kernel.Close()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick:
			if err := quiet(); err != nil {
				return err
			}
		case err, ok := <-w.kernel.Errors:
			switch {
			case !ok:
				return nil
			case errors.Is(err, fsnotify.ErrEventOverflow):
				return errLost
			}
			return ofFile(w.dir, err)
		case e, ok := <-w.kernel.Events:
			if !ok {
				return nil
			}
			if err := w.translate(e, tell); err != nil {
				return err
			}
		}
	}
}

func (w *watcher) translate(e fsnotify.Event, tell func(*envdpb.FilesystemEvent) error) error {
	if e.Name == w.dir {
		return nil // of the directory itself
	}
	if w.watched[e.Name] && (e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)) {
		w.forget(e.Name)
	}
	var fresh bool
	if w.recursive && e.Has(fsnotify.Create) {
		if info, err := os.Lstat(e.Name); err == nil && info.IsDir() {
			if fresh, err = w.watch(e.Name); ignoreGone(err) != nil {
				return err
			}
		}
	}
	for _, k := range kinds {
		if !e.Has(k.op) {
			continue
		}
		if err := tell(w.event(e.Name, k.kind)); err != nil {
			return err
		}
	}
	if fresh {
		return w.scan(e.Name, tell)
	}
	return nil
}

// WatchDir streams events until the caller goes away.
func (a *fileAPI) WatchDir(ctx context.Context, r *connect.Request[envdpb.WatchDirRequest], stream *connect.ServerStream[envdpb.WatchDirResponse]) error {
	w, err := a.watcher(basicUser(r.Header()), r.Msg)
	if err != nil {
		return err
	}
	if err := stream.Send(&envdpb.WatchDirResponse{Event: &envdpb.WatchDirResponse_Start{Start: &envdpb.WatchDirResponse_StartEvent{}}}); err != nil {
		return errors.Join(err, w.kernel.Close())
	}
	ticker := time.NewTicker(interval(r.Header()))
	defer ticker.Stop()
	return w.run(ctx, func(e *envdpb.FilesystemEvent) error {
		return stream.Send(&envdpb.WatchDirResponse{Event: &envdpb.WatchDirResponse_Filesystem{Filesystem: e}})
	}, ticker.C, func() error {
		return stream.Send(&envdpb.WatchDirResponse{Event: &envdpb.WatchDirResponse_Keepalive{Keepalive: &envdpb.WatchDirResponse_KeepAlive{}}})
	})
}

// watchers are those without a stream: their events wait to be fetched.
type watchers struct {
	mu     sync.Mutex
	closed bool
	byID   map[string]*kept
	work   sync.WaitGroup
}

type kept struct {
	stop context.CancelFunc

	// Guarded by watchers.mu.
	events  []*envdpb.FilesystemEvent
	failed  error // told once, after the events before it
	fetched time.Time
}

func newWatchers() *watchers { return &watchers{byID: map[string]*kept{}} }

func (s *watchers) add(w *watcher) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, k := range s.byID {
		if time.Since(k.fetched) > watcherIdle {
			k.stop()
			delete(s.byID, id)
		}
	}
	if s.closed || len(s.byID) >= mostWatchers {
		return "", refuse(connect.CodeResourceExhausted, fault.InvalidInput, "%d watchers are open: remove one first", len(s.byID))
	}
	ctx, stop := context.WithCancel(context.Background())
	k := &kept{stop: stop, fetched: time.Now()}
	id := rand.Text()
	s.byID[id] = k
	s.work.Go(func() {
		err := w.run(ctx, func(e *envdpb.FilesystemEvent) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(k.events) == mostPending {
				k.events, k.failed = nil, errLost
			}
			k.events = append(k.events, e)
			return nil
		}, nil, nil)
		if err != nil && !errors.Is(err, context.Canceled) {
			s.mu.Lock()
			defer s.mu.Unlock()
			k.failed = err
		}
	})
	return id, nil
}

func (s *watchers) closeAll() {
	s.mu.Lock()
	s.closed = true
	for _, k := range s.byID {
		k.stop()
	}
	s.mu.Unlock()
	s.work.Wait()
}

// forgetAll ends every watcher: their ids mean nothing any more.
func (s *watchers) forgetAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, k := range s.byID {
		k.stop()
		delete(s.byID, id)
	}
}

func noWatcher(id string) error {
	return refuse(connect.CodeNotFound, fault.NoSuchThing, "watcher with id '%s' not found", id)
}

func (a *fileAPI) CreateWatcher(_ context.Context, r *connect.Request[envdpb.CreateWatcherRequest]) (*connect.Response[envdpb.CreateWatcherResponse], error) {
	w, err := a.watcher(basicUser(r.Header()), r.Msg)
	if err != nil {
		return nil, err
	}
	id, err := a.g.watchers.add(w)
	if err != nil {
		return nil, errors.Join(err, w.kernel.Close())
	}
	return connect.NewResponse(&envdpb.CreateWatcherResponse{WatcherId: id}), nil
}

// GetWatcherEvents returns what happened since it was last called.
func (a *fileAPI) GetWatcherEvents(_ context.Context, r *connect.Request[envdpb.GetWatcherEventsRequest]) (*connect.Response[envdpb.GetWatcherEventsResponse], error) {
	s := a.g.watchers
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.byID[r.Msg.GetWatcherId()]
	if !ok {
		return nil, noWatcher(r.Msg.GetWatcherId())
	}
	k.fetched = time.Now()
	if err := k.failed; err != nil {
		k.failed = nil
		return nil, err
	}
	events := k.events
	k.events = nil
	return connect.NewResponse(&envdpb.GetWatcherEventsResponse{Events: events}), nil
}

func (a *fileAPI) RemoveWatcher(_ context.Context, r *connect.Request[envdpb.RemoveWatcherRequest]) (*connect.Response[envdpb.RemoveWatcherResponse], error) {
	s := a.g.watchers
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.byID[r.Msg.GetWatcherId()]
	if !ok {
		return nil, noWatcher(r.Msg.GetWatcherId())
	}
	k.stop()
	delete(s.byID, r.Msg.GetWatcherId())
	return connect.NewResponse(&envdpb.RemoveWatcherResponse{}), nil
}
