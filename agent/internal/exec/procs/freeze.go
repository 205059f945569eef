package procs

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// starvedAfter is how late the agent has to be woken to call itself starved.
	starvedAfter = 100 * time.Millisecond
	// manyProcesses is the number of them from which a request makes the others wait.
	manyProcesses = 64
	hurryTime     = 100 * time.Millisecond
	// On gVisor a process may fork while the others are being stopped, and takes note of its stop a while later.
	// So a signal is repeated until it takes as little time as where nothing else runs, twice.
	stopAllRounds = 10
	killAllRounds = 100
	// stopPatience is how long many processes may resist being stopped.
	stopPatience = 2 * time.Second
	prompt       = 5 * time.Millisecond
)

// starved says that the agent waits long for the processor. Where hundreds of processes want it, gVisor lets the agent
// make a system call every second or two, and listing processes takes three for each of them.
var starved atomic.Bool

// NoteDelay takes note of how much later than it asked for the agent was last woken.
func NoteDelay(late time.Duration) { starved.Store(late > starvedAfter) }

// frozen counts those who want everything to stand still.
var frozen struct {
	sync.Mutex
	by int
}

// Freeze stops every process but the agent until everybody who asked for it has thawed. A process that had stopped itself
// goes on then: that is why this is for emergencies. Processes that fork faster than they can be stopped are killed, all
// of them: there is no time to tell whose they are. Only PID 1 may do it: anywhere else "every process" is the whole
// machine's.
func Freeze() (thaw func()) {
	if os.Getpid() != 1 {
		return func() {}
	}
	frozen.Lock()
	defer frozen.Unlock()
	frozen.by++
	began := time.Now()
	if !signalAll(syscall.SIGSTOP, stopAllRounds, stopPatience) && time.Since(began) > stopPatience && manyRun() {
		signalAll(syscall.SIGKILL, killAllRounds, time.Hour)
	}
	return func() {
		frozen.Lock()
		defer frozen.Unlock()
		if frozen.by--; frozen.by == 0 {
			_ = syscall.Kill(-1, syscall.SIGCONT) // as above
		}
	}
}

// signalAll says whether all have taken note.
func signalAll(sig syscall.Signal, rounds int, patience time.Duration) (calm bool) {
	deadline := time.Now().Add(patience)
	for round, prompts := 0, 0; round < rounds; round++ {
		began := time.Now()
		if began.After(deadline) {
			return false
		}
		_ = syscall.Kill(-1, sig) // fails when there is none, which is as good
		if prompts++; time.Since(began) > prompt {
			prompts = 0
		}
		if prompts == 2 {
			return true
		}
	}
	return false
}

// FreezeIfStarved makes room for the agent when there is none.
func FreezeIfStarved() (thaw func()) {
	if starved.Load() {
		return Freeze()
	}
	return func() {}
}

// Hurry lets the agent alone run for a moment, if many processes would keep a request waiting: to answer one takes ten system
// calls or more, which would be half a minute in which no command could be killed.
func Hurry() {
	if starved.Load() && manyRun() {
		time.AfterFunc(hurryTime, Freeze())
	}
}

// manyRun counts with one system call. On Linux, which gives the agent its share, the number is the whole machine's:
// there being late is what counts.
func manyRun() bool {
	var info syscall.Sysinfo_t
	return syscall.Sysinfo(&info) == nil && info.Procs >= manyProcesses
}
