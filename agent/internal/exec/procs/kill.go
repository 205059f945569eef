package procs

import (
	"iter"
	"maps"
	"slices"
	"syscall"
	"time"
)

const (
	termGrace  = 500 * time.Millisecond
	killRounds = 200 // of killPause each: what cannot be killed in 2 s is stuck in the kernel
	killPause  = 10 * time.Millisecond
	// Scans that found nothing while processes were started elsewhere, before everything is stopped for one that is sure.
	unsureScans = 3
)

// Signal signals every process with the tag, but for one pid (0: none), and says how many it reached.
func Signal(tag uint32, sig syscall.Signal, except int) int {
	n := 0
	for _, p := range living(Scan(tag)) {
		if p.PID != except && syscall.Kill(p.PID, sig) == nil {
			n++
		}
	}
	return n
}

// Terminate asks first and kills then. A stopped process is woken, or it would not hear. What is so busy that it cannot
// even be listed in time is not asked.
func Terminate(tag uint32) {
	if starved.Load() {
		defer Freeze()()
		Kill(tag)
		return
	}
	found, all := scanWithin(tag, scanPatience)
	if !all {
		Kill(tag)
		return
	}
	signalEach(slices.Values(found), syscall.SIGTERM)
	signalEach(slices.Values(found), syscall.SIGCONT)
	for waited := time.Duration(0); waited < termGrace; waited += killPause {
		time.Sleep(killPause)
		if len(Alive(tag)) == 0 {
			break
		}
	}
	Kill(tag) // and makes sure
}

// Kill ends every process with the tag. All are stopped first, until no new one appears: a stopped process
// cannot fork, so that even a fork bomb comes to an end.
//
// A scan that finds nothing proves nothing: a process that forks and exits, over and over, is always the one that the
// list does not have yet. It is sure if no process was started meanwhile, or if everything stood still.
func Kill(tag uint32) {
	unsure := 0
	for range killRounds {
		newest := newestPID()
		found, thaw := find(tag)
		stopped := stop(tag, found)
		signalEach(maps.Values(stopped), syscall.SIGKILL)
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

// stop stops those found, and all that have the tag, until no new one appears.
func stop(tag uint32, found []Process) (stopped map[int]Process) {
	stopped = map[int]Process{}
	for range killRounds {
		grew := false
		for _, p := range living(found) {
			if _, known := stopped[p.PID]; !known {
				stopped[p.PID] = p
				grew = true
				_ = syscall.Kill(p.PID, syscall.SIGSTOP) // gone already is as good
			}
		}
		if !grew {
			break
		}
		found = Scan(tag)
	}
	return stopped
}

// killFrozen kills every process with the tag while nothing in the sandbox runs, and says whether there were any.
func killFrozen(tag uint32) (found bool) {
	defer Freeze()()
	left := living(Scan(tag))
	signalEach(slices.Values(left), syscall.SIGKILL)
	return len(left) > 0
}

func signalEach(list iter.Seq[Process], sig syscall.Signal) {
	for p := range list {
		_ = syscall.Kill(p.PID, sig) // gone already is as good
	}
}
