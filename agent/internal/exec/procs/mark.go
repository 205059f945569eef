package procs

import (
	"bytes"
	"strconv"
	"syscall"
	"unsafe"
)

// An agent without privileges cannot give groups to its commands. It marks them with a limit that nothing else uses: the
// soft limit of real-time CPU time, in µs. Children inherit that however they daemonise, and /proc shows it. A process may
// change its own limit, so this finds all that forgot to leave, and not what hides.

const (
	rlimitRTTime = 15
	limitName    = "Max realtime timeout"
)

var byLimit bool

// MarkByLimit is for an agent that cannot set groups. It is called once, before the first command.
func MarkByLimit() { byLimit = true }

// Marked runs a fork whose child has the tag. The caller holds the fork lock: the limit is the whole process's.
func Marked(tag uint32, fork func() error) error {
	if !byLimit || tag == 0 {
		return fork()
	}
	var before [2]uint64 // soft, hard
	if err := limit(nil, &before); err != nil {
		return err
	}
	if err := limit(&[2]uint64{uint64(tag), before[1]}, nil); err != nil {
		return err
	}
	err := fork()
	if back := limit(&before, nil); err == nil {
		err = back
	}
	return err
}

func limit(change, before *[2]uint64) error {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, rlimitRTTime,
		uintptr(unsafe.Pointer(change)), uintptr(unsafe.Pointer(before)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// markOf is the tag in a process's limits; 0 if it has none, or is gone.
func markOf(limits []byte) uint32 {
	for line := range bytes.Lines(limits) {
		if rest, found := bytes.CutPrefix(line, []byte(limitName)); found {
			fields := bytes.Fields(rest)
			if len(fields) == 0 {
				return 0
			}
			tag, err := strconv.ParseUint(string(fields[0]), 10, 32)
			if err != nil || tag < FirstTag {
				return 0
			}
			return uint32(tag)
		}
	}
	return 0
}
