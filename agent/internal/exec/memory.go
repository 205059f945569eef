package exec

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	watchCalm   = 100 * time.Millisecond // while less than half of the memory is used
	watchClose  = 10 * time.Millisecond
	watchIdle   = time.Second // no exec runs, but something that one left behind does
	settles     = time.Second // until what was killed has given its memory back
	fullBytes   = 64 << 10
	memoryFiles = 2
)

var oomFiles = [memoryFiles]string{"/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events"}
var usedFiles = [memoryFiles]string{"/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory.current"}
var limitFiles = [memoryFiles]string{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"}

// memory knows whether commands died for want of it. On Linux the kernel kills and counts; on gVisor the host's kernel
// would kill the whole sandbox, so the agent watches and kills the largest process before that.
type memory struct {
	limit    atomic.Int64 // watched by the agent; 0: the kernel does it
	watched  atomic.Int64
	onVictim func(tags []uint32)
	wake     chan struct{} // an exec has started
}

func (m *memory) watches() bool { return m.limit.Load() > 0 }

// kills is the number of out-of-memory kills so far.
func (m *memory) kills() int64 {
	if m.watches() {
		return m.watched.Load()
	}
	buf := make([]byte, 4096)
	for _, path := range oomFiles {
		for line := range bytes.Lines(readSmall(path, buf)) {
			if value, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
				n, _ := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64) // 0 when unreadable
				return n
			}
		}
	}
	return 0
}

func (m *memory) used() int64 {
	if m.watches() {
		return meminfoUsed()
	}
	return readNumber(usedFiles[:])
}

func (m *memory) limitBytes() int64 {
	if m.watches() {
		return m.limit.Load()
	}
	return readNumber(limitFiles[:])
}

func readNumber(paths []string) int64 {
	for _, path := range paths {
		if raw, err := os.ReadFile(path); err == nil {
			n, _ := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64) // "max" reads as 0: no limit
			return n
		}
	}
	return 0
}

func meminfoUsed() int64 {
	buf := make([]byte, 4096)
	var total, free int64
	for line := range bytes.Lines(readSmall("/proc/meminfo", buf)) {
		fields := bytes.Fields(line)
		if len(fields) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(string(fields[1]), 10, 64) // 0 when unreadable
		switch string(fields[0]) {
		case "MemTotal:":
			total = n << 10
		case "MemFree:":
			free = n << 10
		}
	}
	return total - free
}

// kill is when a process was last killed for want of memory, and how much was used then.
type kill struct {
	at   time.Time
	used int64
}

// another says whether a further one has to go. Memory comes back a while after a kill: whoever is largest meanwhile has
// done nothing, unless more is used than then.
func (k kill) another(used, limit int64, now time.Time) bool {
	return used > limit && (used > k.used || now.Sub(k.at) > settles)
}

// watch sleeps for good while nothing but the agent runs: an idle sandbox costs nothing.
func (m *memory) watch(busy func() bool) {
	var last kill
	for {
		running := busy()
		if !running && len(scan(0)) == 0 {
			<-m.wake
			continue
		}
		used := m.used()
		if last.another(used, m.limit.Load(), time.Now()) {
			m.killLargest()
			last = kill{at: time.Now(), used: used}
		}
		pause := watchIdle
		if used > m.limit.Load()/2 {
			pause = watchClose
		} else if running {
			pause = watchCalm
		}
		select {
		case <-m.wake:
		case <-time.After(pause):
		}
	}
}

// poke tells the watcher that an exec has started.
func (m *memory) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *memory) killLargest() {
	var largest process
	for _, p := range scan(0) {
		if !p.zombie && p.rssKB > largest.rssKB && len(p.tags) > 0 {
			largest = p
		}
	}
	if largest.pid == 0 {
		return
	}
	m.watched.Add(1)
	m.onVictim(largest.tags)
	_ = syscall.Kill(largest.pid, syscall.SIGKILL) // gone already is as good
}

// diskFull says whether one of the folders has no room left.
func diskFull(paths ...string) bool {
	for _, path := range paths {
		var st syscall.Statfs_t
		if syscall.Statfs(path, &st) == nil && st.Blocks > 0 &&
			(st.Bavail*uint64(st.Bsize) < fullBytes || (st.Files > 0 && st.Ffree == 0)) {
			return true
		}
	}
	return false
}
