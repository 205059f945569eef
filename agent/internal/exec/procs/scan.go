// Package procs knows the processes of a sandbox: which exec started them, how all of an exec's are signalled and killed,
// and how everything is stopped where the agent would not get to it otherwise.
package procs

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"
)

// Every exec, and every shell, has a supplementary group of its own. Children inherit it however they daemonise, no
// unprivileged process can drop it (setgroups needs CAP_SETGID), and /proc shows it to everybody, on Linux and on gVisor:
// so it says which processes an exec has started, when parents, sessions and environments no longer do.
// These groups are its tags; they begin after FirstTag.
const FirstTag = 0x40000000

// A scan of 256 processes takes 2 ms on Linux and 20 ms on gVisor when they sleep.
const scanPatience = 200 * time.Millisecond

// Process is one process as /proc shows it.
type Process struct {
	PID   int
	State byte // R, S, T, Z…
	// Threads counts the first one too, until the process is reaped: that one may have exited, and show Z, while
	// the others run on.
	Threads int
	RSSKB   int64
	Tags    []uint32
}

// Ended says that nothing of the process runs any more: it waits to be reaped.
func (p Process) Ended() bool { return (p.State == 'Z' || p.State == 'X') && p.Threads <= 1 }

// Scan lists the processes other than the agent. tag 0 lists all.
func Scan(tag uint32) []Process {
	found, _ := scanWithin(tag, time.Hour)
	return found
}

// scanWithin gives up after a while, and says whether it saw all.
func scanWithin(tag uint32, patience time.Duration) (found []Process, all bool) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, false
	}
	names, _ := dir.Readdirnames(-1) // a partial list is still worth acting on
	dir.Close()
	self, deadline := os.Getpid(), time.Now().Add(patience)
	buf := make([]byte, 8192)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self {
			continue
		}
		if time.Now().After(deadline) {
			return found, false
		}
		status := ReadSmall("/proc/"+name+"/status", buf)
		if status == nil {
			continue
		}
		p := parseStatus(pid, status)
		if byLimit { // the groups that it has are another agent's, which runs this one
			p.Tags = nil
			if mark := markOf(ReadSmall("/proc/"+name+"/limits", buf)); mark != 0 {
				p.Tags = []uint32{mark}
			}
		}
		if tag != 0 && !p.has(tag) {
			continue
		}
		if p.State == 'Z' && !p.Ended() {
			p.RSSKB = threadRSS(name, buf)
		}
		found = append(found, p)
	}
	return found, true
}

// Alive lists the processes with the tag that run.
func Alive(tag uint32) []Process {
	found, thaw := find(tag)
	thaw()
	return living(found)
}

func living(found []Process) (list []Process) {
	for _, p := range found {
		if !p.Ended() {
			list = append(list, p)
		}
	}
	return list
}

// Count counts the processes other than the agent, as many as can be seen in time.
func Count() int {
	found, _ := scanWithin(0, scanPatience)
	return len(found)
}

// find lists the processes with the tag, all of them. Where that takes too long, everything stands still until thaw.
func find(tag uint32) (found []Process, thaw func()) {
	found, all := scanWithin(tag, scanPatience)
	if all {
		return found, func() {}
	}
	thaw = Freeze()
	return Scan(tag), thaw
}

// ReadSmall reads a file of the kernel's with one call, into buf; nil if it cannot.
func ReadSmall(path string, buf []byte) []byte {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	n, err := syscall.Read(fd, buf)
	if err != nil || n <= 0 {
		return nil
	}
	return buf[:n]
}

func parseStatus(pid int, status []byte) Process {
	p := Process{PID: pid}
	for line := range bytes.Lines(status) {
		key, value, _ := bytes.Cut(line, []byte{':'})
		switch string(key) {
		case "State":
			if value = bytes.TrimSpace(value); len(value) > 0 {
				p.State = value[0]
			}
		case "Threads":
			p.Threads, _ = strconv.Atoi(string(bytes.TrimSpace(value))) // 0 when unreadable
		case "VmRSS":
			fields := bytes.Fields(value)
			if len(fields) > 0 {
				p.RSSKB, _ = strconv.ParseInt(string(fields[0]), 10, 64) // 0 when unreadable
			}
		case "Groups":
			for _, g := range bytes.Fields(value) {
				if id, err := strconv.ParseUint(string(g), 10, 32); err == nil && id >= FirstTag {
					p.Tags = append(p.Tags, uint32(id))
				}
			}
		}
	}
	return p
}

// threadRSS is the memory of a process whose first thread has exited: /proc shows it at the other threads only.
func threadRSS(pid string, buf []byte) int64 {
	folder := "/proc/" + pid + "/task"
	entries, _ := os.ReadDir(folder) // gone meanwhile: it has no memory
	for _, entry := range entries {
		if p := parseStatus(0, ReadSmall(folder+"/"+entry.Name()+"/status", buf)); p.RSSKB > 0 {
			return p.RSSKB
		}
	}
	return 0
}

func (p Process) has(tag uint32) bool {
	for _, t := range p.Tags {
		if t == tag {
			return true
		}
	}
	return false
}

// newestPID is the process or thread that was started last in the sandbox; 0 where the kernel does not say (gVisor).
func newestPID() int {
	fields := bytes.Fields(ReadSmall("/proc/loadavg", make([]byte, 128)))
	if len(fields) == 0 {
		return 0
	}
	pid, _ := strconv.Atoi(string(fields[len(fields)-1])) // 0 when unreadable
	return pid
}
