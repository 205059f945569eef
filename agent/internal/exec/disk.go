package exec

import (
	"bytes"
	"syscall"
)

// No counter says which command a full disk failed, and statfs does not show a quota. So there are two signs, and each
// belongs to one command: it says so at the end of its output, or a disk became full while no other command ran.

const (
	fullBytes = 64 << 10
	lastWords = 16 << 10 // of each channel of a command's output: where it says why it failed
)

// noRoom is how programs report ENOSPC and EDQUOT, in lower case. Not the bare "enospc": that is also what Node reports when
// it may watch no more files.
var noRoom = [][]byte{[]byte("no space left on device"), []byte("disk quota exceeded")}

// disks says which of a sandbox's disks are full: the workspace's, and /tmp.
type disks [2]bool

// disksBefore is what a command found when it started.
type disksBefore struct {
	full   disks
	starts uint64 // of commands in this sandbox so far, with this one
	alone  bool   // no other command ran
}

func fullDisks(workspace string) (full disks) {
	for i, path := range [...]string{workspace, "/tmp"} {
		var st syscall.Statfs_t
		full[i] = syscall.Statfs(path, &st) == nil && st.Blocks > 0 &&
			(st.Bavail*uint64(st.Bsize) < fullBytes || (st.Files > 0 && st.Ffree == 0))
	}
	return full
}

// lookAtDisks is called when a command starts, under the registry's lock.
func (r *Registry) lookAtDisks() disksBefore {
	r.starts++
	return disksBefore{fullDisks(r.setup.Workspace), r.starts, r.running == 0}
}

// metFullDisk says whether a full disk is why the command failed. In doubt it is not: another failure must not look like
// a full disk to a caller who then deletes files.
func (r *Registry) metFullDisk(e *Exec) bool {
	if mentionsNoRoom(e.ring.last(1, lastWords)) || mentionsNoRoom(e.ring.last(2, lastWords)) {
		return true
	}
	r.mu.Lock()
	alone := e.disks.alone && e.disks.starts == r.starts
	r.mu.Unlock()
	if !alone {
		return false
	}
	for i, full := range fullDisks(r.setup.Workspace) {
		if full && !e.disks.full[i] {
			return true
		}
	}
	return false
}

func mentionsNoRoom(output []byte) bool {
	output = bytes.ToLower(output)
	for _, text := range noRoom {
		if bytes.Contains(output, text) {
			return true
		}
	}
	return false
}
