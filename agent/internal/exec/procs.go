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
	killRounds = 200 // of killPause each: what cannot be killed in 2 s is stuck in the kernel
	killPause  = 10 * time.Millisecond
)

type process struct {
	pid    int
	zombie bool
	group  bool // has the tag that was asked for
	rssKB  int64
	tags   []uint32
}

// scan lists the processes other than the agent. tag 0 lists all.
func scan(tag uint32) []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	names, _ := dir.Readdirnames(-1) // a partial list is still worth acting on
	dir.Close()
	self := os.Getpid()
	var found []process
	buf := make([]byte, 8192)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self {
			continue
		}
		status := readSmall("/proc/"+name+"/status", buf)
		if status == nil {
			continue
		}
		p := parseStatus(pid, status)
		if tag == 0 || p.has(tag) {
			found = append(found, p)
		}
	}
	return found
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
			p.zombie = bytes.HasPrefix(bytes.TrimSpace(value), []byte{'Z'}) || bytes.HasPrefix(bytes.TrimSpace(value), []byte{'X'})
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

func (p process) has(tag uint32) bool {
	for _, t := range p.tags {
		if t == tag {
			return true
		}
	}
	return false
}

// signalTagged signals every process with the tag, but for one pid (0: none), and says how many.
func signalTagged(tag uint32, sig syscall.Signal, except int) int {
	n := 0
	for _, p := range scan(tag) {
		if !p.zombie && p.pid != except && syscall.Kill(p.pid, sig) == nil {
			n++
		}
	}
	return n
}

// killTagged ends every process with the tag. All are stopped first, until no new one appears: a stopped process
// cannot fork, so that even a fork bomb comes to an end.
func killTagged(tag uint32) {
	for round := 0; round < killRounds; round++ {
		stopped := map[int]bool{}
		for range killRounds {
			grew := false
			for _, p := range scan(tag) {
				if !p.zombie && !stopped[p.pid] {
					stopped[p.pid] = true
					grew = true
					_ = syscall.Kill(p.pid, syscall.SIGSTOP) // gone already is as good
				}
			}
			if !grew {
				break
			}
		}
		if len(stopped) == 0 {
			return
		}
		for pid := range stopped {
			_ = syscall.Kill(pid, syscall.SIGKILL) // as above
		}
		time.Sleep(killPause)
	}
}
