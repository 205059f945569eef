package files

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"syscall"
	"time"
)

const (
	maxWatches = 8192 // folders that one watch may follow

	watchMask = syscall.IN_CREATE | syscall.IN_MODIFY | syscall.IN_CLOSE_WRITE | syscall.IN_DELETE |
		syscall.IN_MOVED_FROM | syscall.IN_MOVED_TO | syscall.IN_ATTRIB
	selfMask = syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF
)

var errTooManyWatches = fail("resource_exhausted", "more folders than the %d that one watch may follow", maxWatches)

// notifier is an inotify instance and what its watches stand for.
type notifier struct {
	file  *os.File
	fd    int
	paths map[int32]string
}

func newNotifier() (*notifier, error) {
	fd, err := syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return &notifier{file: os.NewFile(uintptr(fd), "inotify"), fd: fd, paths: map[int32]string{}}, nil
}

// interrupt makes the reader's Read return. Only the reader closes, so its descriptor stays its own until it is done.
func (n *notifier) interrupt() { _ = n.file.SetReadDeadline(time.Unix(1, 0)) }

func (n *notifier) close() { _ = n.file.Close() }

// add watches a path; one that is watched already only gets its present path.
func (n *notifier) add(path string, mask uint32) (int32, error) {
	wd, err := syscall.InotifyAddWatch(n.fd, path, mask)
	if err == syscall.ENOSPC { // of watches, not of bytes
		return 0, fail("resource_exhausted", "the user's inotify watches are used up")
	}
	if err != nil {
		return 0, err
	}
	n.paths[int32(wd)] = path
	if len(n.paths) > maxWatches {
		return 0, errTooManyWatches
	}
	return int32(wd), nil
}

// forget drops the watches on a folder and on all under it.
func (n *notifier) forget(path string) {
	for wd, watched := range n.paths {
		if watched == path || strings.HasPrefix(watched, path+"/") {
			_, _ = syscall.InotifyRmWatch(n.fd, uint32(wd)) // fails only if it is gone already
			delete(n.paths, wd)
		}
	}
}

// notice is one event as the kernel tells it.
type notice struct {
	wd   int32
	mask uint32
	name string
}

// read waits for events and parses those that there are.
func (n *notifier) read(buf []byte) ([]notice, error) {
	size, err := n.file.Read(buf)
	if err != nil {
		return nil, err
	}
	var notices []notice
	for rest := buf[:size]; len(rest) >= syscall.SizeofInotifyEvent; {
		length := int(binary.NativeEndian.Uint32(rest[12:16]))
		if length > len(rest)-syscall.SizeofInotifyEvent {
			return nil, errors.New("a broken inotify event")
		}
		name := rest[syscall.SizeofInotifyEvent : syscall.SizeofInotifyEvent+length]
		notices = append(notices, notice{
			wd:   int32(binary.NativeEndian.Uint32(rest[0:4])),
			mask: binary.NativeEndian.Uint32(rest[4:8]),
			name: strings.TrimRight(string(name), "\x00"),
		})
		rest = rest[syscall.SizeofInotifyEvent+length:]
	}
	return notices, nil
}
