package tree

import (
	"errors"
	"slices"
	"syscall"

	"sandlot.dev/agent/internal/files/failure"
)

const (
	pendingSize = 64 << 20 // bytes of names of folders that a walk has seen and not yet entered
	MaxPath     = 32 << 10 // bytes of a path relative to a walk's start; what is deeper is left out
)

// ErrEnough ends a walk early and well.
var ErrEnough = errors.New("enough")

// Node is one thing that a walk comes by. Rel is its path from the walk's start; Dirfd and Name are for *at calls.
type Node struct {
	Dirfd int
	Rel   string
	Name  string
	Kind  byte
}

// Walker goes through everything under a folder, each folder's names before what is in its folders, following no
// link. Neither depth nor width costs stack, descriptors or more memory than its bounds.
type Walker struct {
	Depth     int // how many levels down; 0 = all
	MaxRel    int // longest Rel that is visited
	Over      func() bool
	Visit     func(Node) error
	Truncated bool // something was left out
	Omitted   int  // folders that could not be read, and names that were too long
	pending   int
}

// floor is a level of a walk: the folders in it that are still to be entered, last first.
type floor struct {
	folders []string
	relSize int
}

// Run walks the folder that fd is open on, and closes fd.
func (w *Walker) Run(fd int) error {
	way, err := NewDescent(fd)
	if err != nil {
		return err
	}
	defer way.Close()
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
				if err := way.Leave(); err != nil {
					return err
				}
			}
			continue
		}
		last := len(here.folders) - 1
		name := here.folders[last]
		here.folders = here.folders[:last]
		w.pending -= len(name)
		if err := way.Enter(name); err != nil {
			w.omit(err)
			continue
		}
		if len(rel) > 0 {
			rel = append(rel, '/')
		}
		rel = append(rel, name...)
		next, err := w.readFloor(way, rel)
		if err != nil && !Unreadable(err) {
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
	if err == ErrEnough {
		return nil
	}
	return err
}

// Unreadable tells errors about one folder, which a walk passes over, from those that end it.
func Unreadable(err error) bool {
	_, ok := err.(syscall.Errno)
	return ok
}

// omit counts a folder that could not be gone into. One that is not there any more is no loss.
func (w *Walker) omit(err error) {
	if err != syscall.ENOENT && err != syscall.ENOTDIR && err != syscall.ELOOP {
		w.Omitted++
	}
}

// readFloor visits every name in the current folder and gathers its folders.
func (w *Walker) readFloor(way *Descent, rel []byte) (floor, error) {
	f := floor{relSize: len(rel)}
	prefix := string(rel)
	if prefix != "" {
		prefix += "/"
	}
	goDeeper := w.Depth == 0 || way.depth()+1 < w.Depth
	fd, seen := way.FD(), 0
	err := EachName(fd, func(raw []byte, kind byte) error {
		if seen++; seen%64 == 1 && w.Over() {
			return failure.New("cancelled", "the stream is over")
		}
		if len(prefix)+len(raw) > w.MaxRel {
			w.Truncated = true
			w.Omitted++
			return nil
		}
		name := string(raw)
		kind, err := KindOf(fd, name, kind)
		if err != nil {
			return nil // it is gone
		}
		if err := w.Visit(Node{fd, prefix + name, name, kind}); err != nil {
			if Unreadable(err) {
				return failure.New("internal", "%v", err) // not to be taken for this folder's own
			}
			return err
		}
		if kind != Folder || !goDeeper {
			return nil
		}
		if w.pending+len(name) > pendingSize {
			w.Truncated = true
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
