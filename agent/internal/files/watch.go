package files

import (
	"errors"
	"os"
	"syscall"
)

const (
	watchBuffer = 64 << 10 // bytes of events read at once
	watchEvents = 200      // events in one message
)

// watching is one file.watch: it turns notices into events, and follows folders that come and go.
type watching struct {
	call      *call
	notifier  *notifier
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
		Path      jsonPath `json:"path"`
		Recursive bool     `json:"recursive"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	path, err := c.resolve(q.Path)
	if err != nil {
		return err
	}
	n, err := newNotifier()
	if err != nil {
		return err
	}
	defer n.close()
	w := &watching{call: c, notifier: n, recursive: q.Recursive, out: batch{stream: c.stream, key: "events"}}
	if w.root, err = n.add(path, watchMask|selfMask); err != nil {
		return at(path, err)
	}
	if err := w.follow(path, false); err != nil {
		return at(path, err)
	}
	if err := c.stream.SendMessage(map[string]any{"ready": true}); err != nil {
		return err
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			if _, err := c.stream.Recv(); err != nil {
				n.interrupt()
				return
			}
		}
	}()
	err = w.run()
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		code, message := codeOf(err)
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
		notices, err := w.notifier.read(buf)
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
func (w *watching) take(n notice) error {
	if n.mask&syscall.IN_Q_OVERFLOW != 0 {
		return w.overflow()
	}
	path, known := w.notifier.paths[n.wd]
	if !known {
		return nil
	}
	switch {
	case n.mask&syscall.IN_IGNORED != 0:
		delete(w.notifier.paths, n.wd)
		if n.wd == w.root && !w.ended {
			w.ended = true
			return w.event("remove", path)
		}
		return nil
	case n.mask&syscall.IN_DELETE_SELF != 0:
		w.ended = true
		return w.event("remove", path)
	case n.mask&syscall.IN_MOVE_SELF != 0:
		if n.wd != w.root {
			return nil // its folder tells
		}
		w.ended = true
		return w.event("rename", path)
	}
	isFolder := n.mask&syscall.IN_ISDIR != 0
	if n.name != "" {
		path = join(path, n.name)
	} else if isFolder && n.wd != w.root {
		return nil // about a folder itself: its own folder tells that too
	}
	switch {
	case n.mask&(syscall.IN_CREATE|syscall.IN_MOVED_TO) != 0:
		if err := w.event("create", path); err != nil || !isFolder {
			return err
		}
		return w.followNew(path)
	case n.mask&(syscall.IN_MODIFY|syscall.IN_CLOSE_WRITE) != 0:
		return w.event("write", path)
	case n.mask&syscall.IN_DELETE != 0:
		return w.event("remove", path)
	case n.mask&syscall.IN_MOVED_FROM != 0:
		if isFolder {
			w.notifier.forget(path)
		}
		return w.event("rename", path)
	case n.mask&syscall.IN_ATTRIB != 0:
		return w.event("chmod", path)
	}
	return nil
}

// followNew watches a folder that has just appeared, and tells what came to be in it before it was watched.
func (w *watching) followNew(path string) error {
	if !w.recursive {
		return nil
	}
	_, err := w.notifier.add(path, watchMask|syscall.IN_ONLYDIR|syscall.IN_DONT_FOLLOW)
	if err != nil {
		if unreadable(err) {
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
	if path == w.notifier.paths[w.root] {
		fd, err = openat(atFdcwd, path, openFile|syscall.O_DIRECTORY, 0) // the path of a request may be a link
	} else {
		fd, _, err = openFolder(atFdcwd, path)
	}
	if err != nil {
		return nil // a file, or gone
	}
	tree := walker{maxRel: maxPath - len(path) - 1, over: w.call.over}
	tree.visit = func(n node) error {
		full := join(path, n.rel)
		if tell {
			if err := w.event("create", full); err != nil {
				return err
			}
		}
		if n.kind != dtDir {
			return nil
		}
		_, err := w.notifier.add(full, watchMask|syscall.IN_ONLYDIR|syscall.IN_DONT_FOLLOW)
		if unreadable(err) {
			return nil
		}
		return err
	}
	err = tree.run(fd)
	if hasCode(err, "conflict") || unreadable(err) {
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
	return w.follow(w.notifier.paths[w.root], false)
}

// event holds an event to be sent with others.
func (w *watching) event(kind, path string) error {
	if len(path) > maxPath {
		return nil
	}
	item := append([]byte(`{"type":"`), kind...)
	item = appendString(append(item, `","path":`...), path)
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
