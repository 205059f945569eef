package files

import (
	"errors"
	"slices"
	"syscall"
)

const (
	walkLimit   = 100000
	pendingSize = 64 << 20 // bytes of names of folders that a walk has seen and not yet entered
	maxTreePath = 32 << 10 // bytes of a path relative to a walk's start; what is deeper is left out
)

// errEnough ends a walk early and well.
var errEnough = errors.New("enough")

// node is one thing that a walk comes by. rel is its path from the walk's start; dirfd and name are for *at calls.
type node struct {
	dirfd int
	rel   string
	name  string
	kind  byte
}

// walker goes through everything under a folder, each folder's names before what is in its folders, following no
// link. Neither depth nor width costs stack, descriptors or more memory than its bounds.
type walker struct {
	depth     int // how many levels down; 0 = all
	maxRel    int // longest rel that is visited
	over      func() bool
	visit     func(node) error
	truncated bool // something was left out
	omitted   int  // folders that could not be read, and names that were too long
	pending   int
}

// floor is a level of a walk: the folders in it that are still to be entered, last first.
type floor struct {
	folders []string
	relSize int
}

// run walks the folder that fd is open on, and closes fd.
func (w *walker) run(fd int) error {
	way, err := newDescent(fd)
	if err != nil {
		return err
	}
	defer way.close()
	var rel []byte
	first, err := w.readFloor(way, rel)
	if err != nil {
		return ended(err)
	}
	floors := []floor{first}
	for len(floors) > 0 {
		here := &floors[len(floors)-1]
		rel = rel[:here.relSize]
		if len(here.folders) == 0 {
			floors = floors[:len(floors)-1]
			if len(floors) > 0 {
				if err := way.leave(); err != nil {
					return err
				}
			}
			continue
		}
		last := len(here.folders) - 1
		name := here.folders[last]
		here.folders = here.folders[:last]
		w.pending -= len(name)
		if err := way.enter(name); err != nil {
			w.omit(err)
			continue
		}
		if len(rel) > 0 {
			rel = append(rel, '/')
		}
		rel = append(rel, name...)
		next, err := w.readFloor(way, rel)
		if err != nil && !unreadable(err) {
			return ended(err)
		}
		if err != nil {
			w.omit(err)
		}
		floors = append(floors, next)
	}
	return nil
}

// ended: a walk that has had enough has ended well.
func ended(err error) error {
	if err == errEnough {
		return nil
	}
	return err
}

// unreadable tells errors about one folder, which a walk passes over, from those that end it.
func unreadable(err error) bool {
	_, ok := err.(syscall.Errno)
	return ok
}

// omit counts a folder that could not be gone into. One that is not there any more is no loss.
func (w *walker) omit(err error) {
	if err != syscall.ENOENT && err != syscall.ENOTDIR && err != syscall.ELOOP {
		w.omitted++
	}
}

// readFloor visits every name in the current folder and gathers its folders.
func (w *walker) readFloor(way *descent, rel []byte) (floor, error) {
	f := floor{relSize: len(rel)}
	prefix := string(rel)
	if prefix != "" {
		prefix += "/"
	}
	goDeeper := w.depth == 0 || way.depth()+1 < w.depth
	fd, seen := way.fd(), 0
	err := eachName(fd, func(raw []byte, kind byte) error {
		if seen++; seen%64 == 1 && w.over() {
			return fail("cancelled", "the stream is over")
		}
		if len(prefix)+len(raw) > w.maxRel {
			w.truncated = true
			w.omitted++
			return nil
		}
		name := string(raw)
		kind, err := kindOf(fd, name, kind)
		if err != nil {
			return nil // it is gone
		}
		if err := w.visit(node{fd, prefix + name, name, kind}); err != nil {
			if unreadable(err) {
				return fail("internal", "%v", err) // not to be taken for this folder's own
			}
			return err
		}
		if kind != dtDir || !goDeeper {
			return nil
		}
		if w.pending+len(name) > pendingSize {
			w.truncated = true
			return nil
		}
		w.pending += len(name)
		f.folders = append(f.folders, name)
		return nil
	})
	slices.SortFunc(f.folders, func(a, b string) int { // the last is entered first
		if a > b {
			return -1
		}
		return 1
	})
	return f, err
}

// walk serves file.walk.
func (c *call) walk() error {
	var q struct {
		Path  jsonPath `json:"path"`
		Depth int      `json:"depth"`
		Glob  jsonPath `json:"glob"`
		Limit int      `json:"limit"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	path, err := c.resolve(q.Path)
	if err != nil {
		return err
	}
	limit, err := limited(q.Limit, walkLimit, walkLimit)
	if err != nil {
		return err
	}
	if q.Depth < 0 {
		return fail("bad_request", "depth is negative")
	}
	matches, err := compileGlob(string(q.Glob))
	if err != nil {
		return err
	}
	fd, err := openat(atFdcwd, path, openFile|syscall.O_DIRECTORY, 0)
	if err != nil {
		return at(path, err)
	}
	out := batch{stream: c.stream, key: "entries"}
	var item []byte
	found := 0
	w := walker{depth: q.Depth, maxRel: maxPath - len(path) - 1, over: c.over}
	w.visit = func(n node) error {
		if !matches(n.rel) {
			return nil
		}
		if found == limit {
			w.truncated = true
			return errEnough
		}
		var err error
		item, err = appendEntryAt(item[:0], n.dirfd, join(path, n.rel), n.name)
		if err != nil {
			return nil // it is gone
		}
		found++
		return out.add(item)
	}
	if err := w.run(fd); err != nil {
		if !hasCode(err, "conflict") {
			return at(path, err)
		}
		w.truncated = true
	}
	return out.finish(map[string]any{"truncated": w.truncated})
}
