package exec

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// crowdedAfter is how late the agent has to be woken to call the sandbox crowded.
	crowdedAfter = 100 * time.Millisecond
	// crowd is the number of processes from which a request makes the others wait.
	crowd = 64
	turn  = 100 * time.Millisecond
	// On gVisor a process may fork while the others are being stopped, and takes note of its stop a while later.
	// So a signal is repeated until it takes as little time as where nothing else runs, twice.
	stopRounds = 10
	killRounds = 100
	// stopPatience is how long a crowd may resist being stopped.
	stopPatience = 2 * time.Second
	prompt       = 5 * time.Millisecond
)

// crowded says that the agent waits long for the processor. Where hundreds of processes want it, gVisor lets the agent
// make a system call every second or two, and listing processes takes three for each of them.
var crowded atomic.Bool

// frozen counts those who want everything to stand still.
var frozen struct {
	sync.Mutex
	by int
}

// freeze stops every process but the agent until everybody who asked for it has thawed. A process that had stopped itself
// goes on then: that is why this is for emergencies. Processes that fork faster than they can be stopped are killed, all
// of them: there is no time to tell whose they are. Only PID 1 may do it: anywhere else "every process" is the whole
// machine's.
func freeze() (thaw func()) {
	if os.Getpid() != 1 {
		return func() {}
	}
	frozen.Lock()
	defer frozen.Unlock()
	frozen.by++
	began := time.Now()
	if !signalAll(syscall.SIGSTOP, stopRounds, stopPatience) && time.Since(began) > stopPatience && isCrowd() {
		signalAll(syscall.SIGKILL, killRounds, time.Hour)
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

// freezeCrowd makes room for the agent when there is none.
func freezeCrowd() (thaw func()) {
	if crowded.Load() {
		return freeze()
	}
	return func() {}
}

// Hurry lets the agent alone run for a moment, if a crowd would keep a request waiting: to answer one takes ten system
// calls or more, which would be half a minute in which no command could be killed.
func Hurry() {
	if crowded.Load() && isCrowd() {
		time.AfterFunc(turn, freeze())
	}
}

// isCrowd counts with one system call. On Linux, which gives the agent its share, the number is the whole machine's:
// there being late is what counts.
func isCrowd() bool {
	var info syscall.Sysinfo_t
	return syscall.Sysinfo(&info) == nil && info.Procs >= crowd
}
