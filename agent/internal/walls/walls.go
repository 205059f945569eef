// Package walls makes the agent safe from the commands it runs: no spare privilege to steal, nothing readable, and
// enough threads in hand to go on when commands have taken every process id.
package walls

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"
)

const (
	prSetDumpable   = 4
	prCapBSetDrop   = 24
	capKill         = 5
	capSetgid       = 6
	capSetuid       = 7
	lastCap         = 63
	capVersion3     = 0x20080522
	spareThreads    = 12        // more than the agent ever blocks at once: it forks under one lock and polls the rest
	memoryLimit     = 128 << 20 // the runtime collects harder near this; the agent's own bounds are far below
	agentOOMScore   = "500"
	commandOOMScore = "1000"
)

// Harden is called once, before anything else runs in the agent.
func Harden() error {
	debug.SetMemoryLimit(memoryLimit)
	runtime.GOMAXPROCS(1) // most sandboxes have half a core; one run queue also hands work over without waking threads
	syscall.Umask(0o022)
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0); errno != 0 { // of the whole process
		return fmt.Errorf("prctl(PR_SET_DUMPABLE): %w", errno)
	}
	bounding, filtered, err := ownStatus()
	if err != nil {
		return err
	}
	// Only those that are there: each drop is done on every thread, which gVisor takes its time for.
	for c := range lastCap + 1 {
		if bounding&(1<<c) == 0 {
			continue
		}
		if _, _, errno := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, prCapBSetDrop, uintptr(c), 0); errno != 0 {
			return fmt.Errorf("prctl(PR_CAPBSET_DROP, %d): %w", c, errno)
		}
	}
	if err := keepCaps(1<<capKill | 1<<capSetgid | 1<<capSetuid); err != nil {
		return err
	}
	if filtered {
		SpawnThreads(spareThreads)
		return nil
	}
	// gVisor: the engine's profile is not applied, and what bounds processes is the user's ulimit, not the agent's.
	return refuseNamespaces()
}

// ownStatus reads the capabilities that could still be gained, and whether a seccomp profile is in force.
func ownStatus() (bounding uint64, filtered bool, err error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, false, err
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		switch key {
		case "CapBnd":
			if bounding, err = strconv.ParseUint(strings.TrimSpace(value), 16, 64); err != nil {
				return 0, false, err
			}
		case "Seccomp":
			filtered = strings.TrimSpace(value) == "2"
		}
	}
	return bounding, filtered, nil
}

// HideHelper is Harden for a process that has no privilege to begin with.
func HideHelper() {
	debug.SetMemoryLimit(memoryLimit)
	syscall.Umask(0) // modes are what the worker asks for
	// Without it another process of the same user could read and steer the helper. It would gain nothing that the
	// user cannot do anyway, so a kernel that refuses is no reason to stop.
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
}

func keepCaps(mask uint32) error {
	head := struct {
		version uint32
		pid     int32
	}{capVersion3, 0}
	data := [2]struct{ effective, permitted, inheritable uint32 }{{mask, mask, 0}, {0, 0, 0}}
	_, _, errno := syscall.AllThreadsSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&data)), 0)
	runtime.KeepAlive(&head)
	runtime.KeepAlive(&data)
	if errno != 0 {
		return fmt.Errorf("capset: %w", errno)
	}
	return nil
}

// SpawnThreads makes the runtime own n threads. It keeps idle ones for ever, and a runtime that cannot make a thread
// when it needs one ends the process: under a fork bomb that would be the end of the sandbox.
func SpawnThreads(n int) {
	var ready, done sync.WaitGroup
	ready.Add(n)
	done.Add(n)
	release := make(chan struct{})
	for range n {
		go func() {
			runtime.LockOSThread()
			ready.Done()
			<-release
			runtime.UnlockOSThread()
			done.Done()
		}()
	}
	ready.Wait()
	close(release)
	done.Wait()
}

// AsCommand runs a fork with the score that children shall have: the kernel's OOM killer takes commands first.
// The caller holds the fork lock.
func AsCommand(fork func()) {
	raised := os.WriteFile("/proc/self/oom_score_adj", []byte(commandOOMScore), 0) == nil
	fork()
	if raised {
		// Back to what the container began with; a refusal leaves the agent as killable as its commands, no worse.
		_ = os.WriteFile("/proc/self/oom_score_adj", []byte(agentOOMScore), 0)
	}
}
