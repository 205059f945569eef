package exec

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
const firstTag = 0x40000000

const (
	endRounds = 200 // of killPause each: what cannot be killed in 2 s is stuck in the kernel
	killPause = 10 * time.Millisecond
	// A scan of 256 processes takes 2 ms on Linux and 20 ms on gVisor when they sleep.
	scanPatience = 200 * time.Millisecond
	// Scans that found nothing while processes were started elsewhere, before everything is stopped for one that is sure.
	unsureScans = 3
)

type process struct {
	pid   int
	state byte // as /proc gives it: R, S, T, Z…
	// threads counts the first one too, until the process is reaped: that one may have exited, and show Z, while
	// the others run on.
	threads int
	rssKB   int64
	tags    []uint32
}

// ended says that nothing of the process runs any more: it waits to be reaped.
func (p process) ended() bool { return (p.state == 'Z' || p.state == 'X') && p.threads <= 1 }

// scan lists the processes other than the agent. tag 0 lists all.
func scan(tag uint32) []process {
	found, _ := scanWithin(tag, time.Hour)
	return found
}

// scanWithin gives up after a while, and says whether it saw all.
func scanWithin(tag uint32, patience time.Duration) (found []process, all bool) {
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
		status := readSmall("/proc/"+name+"/status", buf)
		if status == nil {
			continue
		}
		p := parseStatus(pid, status)
		if tag != 0 && !p.has(tag) {
			continue
		}
		if p.state == 'Z' && !p.ended() {
			p.rssKB = threadRSS(name, buf)
		}
		found = append(found, p)
	}
	return found, true
}

// find lists the processes with the tag, all of them. Where that takes too long, everything stands still until thaw.
func find(tag uint32) (found []process, thaw func()) {
	found, all := scanWithin(tag, scanPatience)
	if all {
		return found, func() {}
	}
	thaw = freeze()
	return scan(tag), thaw
}

func readSmall(path string, buf []byte) []byte {
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

func parseStatus(pid int, status []byte) process {
	p := process{pid: pid}
	for line := range bytes.Lines(status) {
		key, value, _ := bytes.Cut(line, []byte{':'})
		switch string(key) {
		case "State":
			if value = bytes.TrimSpace(value); len(value) > 0 {
				p.state = value[0]
			}
		case "Threads":
			p.threads, _ = strconv.Atoi(string(bytes.TrimSpace(value))) // 0 when unreadable
		case "VmRSS":
			fields := bytes.Fields(value)
			if len(fields) > 0 {
				p.rssKB, _ = strconv.ParseInt(string(fields[0]), 10, 64) // 0 when unreadable
			}
		case "Groups":
			for _, g := range bytes.Fields(value) {
				if id, err := strconv.ParseUint(string(g), 10, 32); err == nil && id >= firstTag {
					p.tags = append(p.tags, uint32(id))
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
		if p := parseStatus(0, readSmall(folder+"/"+entry.Name()+"/status", buf)); p.rssKB > 0 {
			return p.rssKB
		}
	}
	return 0
}

func (p process) has(tag uint32) bool {
	for _, t := range p.tags {
		if t == tag {
			return true
		}
	}
	return false
}

// signalTagged signals every process with the tag, but for one pid (0: none), and says how many it reached.
func signalTagged(tag uint32, sig syscall.Signal, except int) int {
	n := 0
	for _, p := range scan(tag) {
		if !p.ended() && p.pid != except && syscall.Kill(p.pid, sig) == nil {
			n++
		}
	}
	return n
}

// killTagged ends every process with the tag. All are stopped first, until no new one appears: a stopped process
// cannot fork, so that even a fork bomb comes to an end.
//
// A scan that finds nothing proves nothing: a process that forks and exits, over and over, is always the one that the
// list does not have yet. It is sure if no process was started meanwhile, or if everything stood still.
func killTagged(tag uint32) {
	unsure := 0
	for range endRounds {
		newest := newestPID()
		stopped := map[int]bool{}
		found, thaw := find(tag)
		for range endRounds {
			grew := false
			for _, p := range found {
				if !p.ended() && !stopped[p.pid] {
					stopped[p.pid] = true
					grew = true
					_ = syscall.Kill(p.pid, syscall.SIGSTOP) // gone already is as good
				}
			}
			if !grew {
				break
			}
			found = scan(tag)
		}
		for pid := range stopped {
			_ = syscall.Kill(pid, syscall.SIGKILL) // as above
		}
		thaw()
		if len(stopped) == 0 {
			if newest != 0 && newest == newestPID() {
				return
			}
			if unsure++; (newest == 0 || unsure >= unsureScans) && !killFrozen(tag) {
				return
			}
		}
		time.Sleep(killPause)
	}
}

// killFrozen kills every process with the tag while nothing in the sandbox runs, and says whether there were any.
func killFrozen(tag uint32) (found bool) {
	defer freeze()()
	for _, p := range scan(tag) {
		if !p.ended() {
			found = true
			_ = syscall.Kill(p.pid, syscall.SIGKILL) // gone already is as good
		}
	}
	return found
}

// newestPID is the process or thread that was started last in the sandbox; 0 where the kernel does not say (gVisor).
func newestPID() int {
	fields := bytes.Fields(readSmall("/proc/loadavg", make([]byte, 128)))
	if len(fields) == 0 {
		return 0
	}
	pid, _ := strconv.Atoi(string(fields[len(fields)-1])) // 0 when unreadable
	return pid
}
