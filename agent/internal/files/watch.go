package files

import (
	"errors"
	"os"
	"syscall"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/inotify"
	"sandlot.dev/agent/internal/files/paths"
	"sandlot.dev/agent/internal/files/sys"
	"sandlot.dev/agent/internal/files/tree"
)

const (
	watchBuffer = 64 << 10 // bytes of events read at once
	watchEvents = 200      // events in one message
)

// watching is one file.watch: it turns notices into events, and follows folders that come and go.
type watching struct {
	call      *call
	notifier  *inotify.Notifier
	recursive bool
	root      int32
	out       batch
	held      int    // events in out
	last      []byte // the event before, which is not repeated
	ended     bool   // the watched path itself is gone
}

// watch serves file.watch. It ends at the worker's END or RESET, or after the event that the path itself went away.
func (c *call) watch() error {
	var q struct {
		Path      paths.Path `json:"path"`
		Recursive bool       `json:"recursive"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	path, err := c.resolve(q.Path)
	if err != nil {
		return err
	}
	n, err := inotify.New()
	if err != nil {
		return err
	}
	defer n.Close()
	w := &watching{call: c, notifier: n, recursive: q.Recursive, out: batch{stream: c.stream, key: "events"}}
	if w.root, err = n.Add(path, inotify.Changes|inotify.SelfGone); err != nil {
		return failure.At(path, err)
	}
	if err := w.follow(path, false); err != nil {
		return failure.At(path, err)
	}
	if err := c.stream.SendMessage(map[string]any{"ready": true}); err != nil {
		return err
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			if _, err := c.stream.Recv(); err != nil {
				n.Interrupt()
				return
			}
		}
	}()
	err = w.run()
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		code, message := failure.CodeOf(err)
		c.stream.Reset(code, message)
	} else if endErr := c.stream.End(); endErr != nil {
		c.stream.Reset("internal", endErr.Error())
	}
	<-stopped
	return nil
}

func (w *watching) run() error {
	buf := make([]byte, watchBuffer)
	for !w.ended {
		notices, err := w.notifier.Read(buf)
		if err != nil {
			return err
		}
		for _, n := range notices {
			if err := w.take(n); err != nil {
				return err
			}
		}
		if err := w.send(); err != nil {
			return err
		}
	}
	return nil
}

// take handles one notice.
func (w *watching) take(n inotify.Notice) error {
	if n.Mask&syscall.IN_Q_OVERFLOW != 0 {
		return w.overflow()
	}
	path, known := w.notifier.Path(n.Watch)
	if !known {
		return nil
	}
	switch {
	case n.Mask&syscall.IN_IGNORED != 0:
		w.notifier.Ended(n.Watch)
		if n.Watch == w.root && !w.ended {
			w.ended = true
			return w.event("remove", path)
		}
		return nil
	case n.Mask&syscall.IN_DELETE_SELF != 0:
		w.ended = true
		return w.event("remove", path)
	case n.Mask&syscall.IN_MOVE_SELF != 0:
		if n.Watch != w.root {
			return nil // its folder tells
		}
		w.ended = true
		return w.event("rename", path)
	}
	isFolder := n.Mask&syscall.IN_ISDIR != 0
	if n.Name != "" {
		path = paths.Join(path, n.Name)
	} else if isFolder && n.Watch != w.root {
		return nil // about a folder itself: its own folder tells that too
	}
	switch {
	case n.Mask&(syscall.IN_CREATE|syscall.IN_MOVED_TO) != 0:
		if err := w.event("create", path); err != nil || !isFolder {
			return err
		}
		return w.followNew(path)
	case n.Mask&(syscall.IN_MODIFY|syscall.IN_CLOSE_WRITE) != 0:
		return w.event("write", path)
	case n.Mask&syscall.IN_DELETE != 0:
		return w.event("remove", path)
	case n.Mask&syscall.IN_MOVED_FROM != 0:
		if isFolder {
			w.notifier.Forget(path)
		}
		return w.event("rename", path)
	case n.Mask&syscall.IN_ATTRIB != 0:
		return w.event("chmod", path)
	}
	return nil
}

// followNew watches a folder that has just appeared, and tells what came to be in it before it was watched.
func (w *watching) followNew(path string) error {
	if !w.recursive {
		return nil
	}
	_, err := w.notifier.Add(path, inotify.Changes|syscall.IN_ONLYDIR|syscall.IN_DONT_FOLLOW)
	if err != nil {
		if tree.Unreadable(err) {
			return nil // it is gone, or not for this user
		}
		return err
	}
	return w.follow(path, true)
}

// follow adds watches to all folders under a watched one, and tells what is there if asked to.
func (w *watching) follow(path string, tell bool) error {
	if !w.recursive {
		return nil
	}
	var fd int
	var err error
	if path == w.rootPath() {
		fd, err = sys.Openat(sys.AtFdcwd, path, sys.ReadFlags|syscall.O_DIRECTORY, 0) // the path of a request may be a link
	} else {
		fd, _, err = sys.OpenFolder(sys.AtFdcwd, path)
	}
	if err != nil {
		return nil // a file, or gone
	}
	walk := tree.Walker{MaxRel: paths.MaxBytes - len(path) - 1, Over: w.call.over}
	walk.Visit = func(n tree.Node) error {
		full := paths.Join(path, n.Rel)
		if tell {
			if err := w.event("create", full); err != nil {
				return err
			}
		}
		if n.Kind != tree.Folder {
			return nil
		}
		_, err := w.notifier.Add(full, inotify.Changes|syscall.IN_ONLYDIR|syscall.IN_DONT_FOLLOW)
		if tree.Unreadable(err) {
			return nil
		}
		return err
	}
	err = walk.Run(fd)
	if failure.Has(err, "conflict") || tree.Unreadable(err) {
		return nil // folders moved meanwhile, which the notices tell
	}
	return err
}

// overflow tells that events were lost, and watches folders whose creation may have been among them.
func (w *watching) overflow() error {
	if err := w.send(); err != nil {
		return err
	}
	if err := w.call.stream.SendMessage(map[string]any{"overflow": true}); err != nil {
		return err
	}
	return w.follow(w.rootPath(), false)
}

// rootPath is the path of the request; "" once its watch has ended.
func (w *watching) rootPath() string {
	path, _ := w.notifier.Path(w.root)
	return path
}

// event holds an event to be sent with others.
func (w *watching) event(kind, path string) error {
	if len(path) > paths.MaxBytes {
		return nil
	}
	item := append([]byte(`{"type":"`), kind...)
	item = paths.AppendString(append(item, `","path":`...), path)
	item = append(item, '}')
	if w.held > 0 && string(item) == string(w.last) {
		return nil
	}
	w.last = item
	if w.held == watchEvents {
		if err := w.send(); err != nil {
			return err
		}
	}
	w.held++
	return w.out.add(item)
}

func (w *watching) send() error {
	w.held = 0
	if len(w.out.items) == 0 {
		return nil
	}
	return w.out.flush(nil)
}
