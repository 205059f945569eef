// Package inotify watches folders through one inotify instance and knows which path each watch stands for.
package inotify

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"syscall"
	"time"

	"sandlot.dev/agent/internal/files/failure"
)

const (
	// MaxWatches is how many folders one Notifier may watch.
	MaxWatches = 8192

	// Changes are the events of a folder's content, SelfGone those of the watched path itself.
	Changes = syscall.IN_CREATE | syscall.IN_MODIFY | syscall.IN_CLOSE_WRITE | syscall.IN_DELETE |
		syscall.IN_MOVED_FROM | syscall.IN_MOVED_TO | syscall.IN_ATTRIB
	SelfGone = syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF
)

var errTooManyWatches = failure.New("resource_exhausted", "more folders than the %d that one watch may follow", MaxWatches)

// Notifier is an inotify instance and what its watches stand for.
type Notifier struct {
	file  *os.File
	fd    int
	paths map[int32]string
}

// New makes an instance that watches nothing yet.
func New() (*Notifier, error) {
	fd, err := syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return &Notifier{file: os.NewFile(uintptr(fd), "inotify"), fd: fd, paths: map[int32]string{}}, nil
}

// Interrupt makes the reader's Read return. Only the reader closes, so its descriptor stays its own until it is done.
func (n *Notifier) Interrupt() { _ = n.file.SetReadDeadline(time.Unix(1, 0)) }

// Close ends all watches.
func (n *Notifier) Close() { _ = n.file.Close() }

// Add watches a path; one that is watched already only gets its present path.
func (n *Notifier) Add(path string, mask uint32) (int32, error) {
	wd, err := syscall.InotifyAddWatch(n.fd, path, mask)
	if err == syscall.ENOSPC { // of watches, not of bytes
		return 0, failure.New("resource_exhausted", "the user's inotify watches are used up")
	}
	if err != nil {
		return 0, err
	}
	n.paths[int32(wd)] = path
	if len(n.paths) > MaxWatches {
		return 0, errTooManyWatches
	}
	return int32(wd), nil
}

// Path is what a watch stands for.
func (n *Notifier) Path(watch int32) (path string, known bool) {
	path, known = n.paths[watch]
	return path, known
}

// Ended forgets a watch that the kernel has ended.
func (n *Notifier) Ended(watch int32) { delete(n.paths, watch) }

// Forget drops the watches on a folder and on all under it.
func (n *Notifier) Forget(path string) {
	for wd, watched := range n.paths {
		if watched == path || strings.HasPrefix(watched, path+"/") {
			_, _ = syscall.InotifyRmWatch(n.fd, uint32(wd)) // fails only if it is gone already
			delete(n.paths, wd)
		}
	}
}

// Notice is one event as the kernel tells it.
type Notice struct {
	Watch int32
	Mask  uint32
	Name  string
}

// Read waits for events and parses those that there are.
func (n *Notifier) Read(buf []byte) ([]Notice, error) {
	size, err := n.file.Read(buf)
	if err != nil {
		return nil, err
	}
	var notices []Notice
	for rest := buf[:size]; len(rest) >= syscall.SizeofInotifyEvent; {
		length := int(binary.NativeEndian.Uint32(rest[12:16]))
		if length > len(rest)-syscall.SizeofInotifyEvent {
			return nil, errors.New("a broken inotify event")
		}
		name := rest[syscall.SizeofInotifyEvent : syscall.SizeofInotifyEvent+length]
		notices = append(notices, Notice{
			Watch: int32(binary.NativeEndian.Uint32(rest[0:4])),
			Mask:  binary.NativeEndian.Uint32(rest[4:8]),
			Name:  strings.TrimRight(string(name), "\x00"),
		})
		rest = rest[syscall.SizeofInotifyEvent+length:]
	}
	return notices, nil
}
