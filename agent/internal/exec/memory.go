package exec

import (
	"bytes"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"sandlot.dev/agent/internal/exec/procs"
	"sandlot.dev/agent/internal/walls"
)

const (
	watchCalm   = 100 * time.Millisecond // while less than half of the memory is used
	watchClose  = 10 * time.Millisecond
	watchIdle   = time.Second            // no exec runs, but something that one left behind does
	settles     = time.Second            // until what was killed has given its memory back
	comesBack   = 500 * time.Millisecond // for which all others stand still
	memoryFiles = 2
)

var oomFiles = [memoryFiles]string{"/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events"}
var usedFiles = [memoryFiles]string{"/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory.current"}
var statFiles = [memoryFiles]string{"/sys/fs/cgroup/memory/memory.stat", "/sys/fs/cgroup/memory.stat"}
var limitFiles = [memoryFiles]string{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"}

// memory knows whether commands died for want of it. On Linux the kernel kills and counts; on gVisor the host's kernel
// would kill the whole sandbox, so the agent watches and kills the largest process before that. On Linux it watches for
// commands that would have the kernel kill the agent in their place.
type memory struct {
	limit    atomic.Int64 // watched by the agent; 0: the kernel does it
	watched  atomic.Int64
	onVictim func(tags []uint32)
	wake     chan struct{} // an exec has started
}

func (m *memory) watches() bool { return m.limit.Load() > 0 }

// kills is the number of out-of-memory kills so far, by the agent and by the kernel.
func (m *memory) kills() int64 {
	if m.watches() {
		return m.watched.Load()
	}
	return m.watched.Load() + kernelKills()
}

func kernelKills() int64 {
	buf := make([]byte, 4096)
	for _, path := range oomFiles {
		for line := range bytes.Lines(procs.ReadSmall(path, buf)) {
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
	for line := range bytes.Lines(procs.ReadSmall("/proc/meminfo", buf)) {
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
		if !running && len(procs.Scan(0)) == 0 {
			procs.NoteDelay(0)
			<-m.wake
			continue
		}
		used, limit := m.used(), m.limitBytes()
		if !m.watches() {
			if limit > 0 && used > limit/4*3 && unreclaimable() > limit/4*3 {
				m.killShielded()
			}
		} else if last.another(used, limit, time.Now()) {
			m.killLargest(used, limit)
			last = kill{at: time.Now(), used: used}
		}
		pause := watchIdle
		if limit > 0 && used > limit/2 {
			pause = watchClose
		} else if running {
			pause = watchCalm
		}
		slept := time.Now()
		select {
		case <-m.wake:
		case <-time.After(pause):
			procs.NoteDelay(time.Since(slept) - pause)
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

// killLargest kills the largest processes until what is left fits. Everything stands still meanwhile, and until their
// memory has come back: nobody allocates in their place.
func (m *memory) killLargest(used, limit int64) {
	defer procs.Freeze()()
	found := procs.Scan(0)
	sort.Slice(found, func(i, j int) bool { return found[i].RSSKB > found[j].RSSKB })
	target := limit / 10 * 9
	for _, p := range found {
		if used <= target || p.RSSKB == 0 {
			break
		}
		if p.Ended() || len(p.Tags) == 0 {
			continue
		}
		m.sacrifice(p)
		used -= p.RSSKB << 10
	}
	for range comesBack / watchClose {
		if m.used() <= limit {
			return
		}
		time.Sleep(watchClose)
	}
}

// sacrifice kills a command's process for want of memory.
func (m *memory) sacrifice(p procs.Process) {
	m.watched.Add(1)
	m.onVictim(p.Tags)
	_ = syscall.Kill(p.PID, syscall.SIGKILL) // gone already is as good
}

// killShielded kills the commands that have lowered their OOM score. Those that hold memory which no process maps, such
// as a memfd, are small for the kernel, and it would kill the agent before them.
func (m *memory) killShielded() {
	buf := make([]byte, 64)
	for _, p := range procs.Scan(0) {
		score := bytes.TrimSpace(procs.ReadSmall("/proc/"+strconv.Itoa(p.PID)+"/oom_score_adj", buf))
		if n, err := strconv.Atoi(string(score)); err != nil || n >= walls.CommandOOMScore || len(p.Tags) == 0 || p.Ended() {
			continue
		}
		m.sacrifice(p)
	}
}

// unreclaimable is the memory that the kernel cannot take back as it takes back cached files.
func unreclaimable() (bytesUsed int64) {
	buf := make([]byte, 8192)
	for _, path := range statFiles {
		stat := procs.ReadSmall(path, buf)
		for line := range bytes.Lines(stat) {
			name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte{' '})
			switch string(name) {
			case "anon", "shmem", "total_rss", "total_shmem":
				n, _ := strconv.ParseInt(string(value), 10, 64) // 0 when unreadable
				bytesUsed += n
			}
		}
		if stat != nil {
			break
		}
	}
	return bytesUsed
}
