// Package walls makes the agent safe from the commands it runs: no spare privilege to steal, nothing readable, and
// enough threads in hand to go on when commands have taken every process id.
package walls

import (
	"fmt"
	"os"
	"path/filepath"
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
	prSetSubreaper  = 36
	prSetNoNewPrivs = 38
	capChown        = 0
	capKill         = 5
	capSetgid       = 6
	capSetuid       = 7
	lastCap         = 63
	capVersion3     = 0x20080522
	spareThreads    = 12        // more than the agent ever blocks at once: it forks under one lock and polls the rest
	MemoryLimit     = 128 << 20 // the runtime collects harder near this; the agent's own bounds are far below
	// What the agent keeps for its life.
	lasting         = 1<<capKill | 1<<capSetgid | 1<<capSetuid
	agentOOMScore   = "500"
	CommandOOMScore = 1000
)

// Harden is called once, before anything else runs in the agent.
func Harden() error {
	debug.SetMemoryLimit(MemoryLimit)
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
	if err := keepCaps(1<<capChown|lasting, 1<<capChown|lasting); err != nil {
		return err
	}
	if filtered {
		SpawnThreads(spareThreads)
		return nil
	}
	// gVisor: the engine's profile is not applied, and what bounds processes is the user's ulimit, not the agent's.
	return refuseNamespaces()
}

// HardenRemote is Harden for an agent that is not PID 1, in a machine that another service made. Its orphans come to it as
// to PID 1. Where it is root, it keeps from its commands what Harden keeps from them; as an ordinary user it cannot.
func HardenRemote() error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetSubreaper, 1, 0); errno != 0 { // of the whole process
		return fmt.Errorf("prctl(PR_SET_CHILD_SUBREAPER): %w", errno)
	}
	if _, _, errno := syscall.AllThreadsSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("prctl(PR_SET_NO_NEW_PRIVS): %w", errno)
	}
	if os.Getuid() == 0 {
		return Harden()
	}
	debug.SetMemoryLimit(MemoryLimit)
	runtime.GOMAXPROCS(1) // as in Harden
	syscall.Umask(0o022)
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0); errno != 0 {
		return fmt.Errorf("prctl(PR_SET_DUMPABLE): %w", errno)
	}
	SpawnThreads(spareThreads)
	return nil
}

// Own gives a folder and all that is in it to the sandbox's user, and drops the right to do such things. It is called
// once, before the first command. The image's files belong to one user; the agent works as that user, with the right to
// give files away, since without more rights root could not enter folders that are shut to others.
func Own(folder string, uid, gid int) error {
	var st syscall.Stat_t
	if err := syscall.Stat(folder, &st); err != nil {
		return err
	}
	if int(st.Uid) != uid {
		if err := own(folder, int(st.Uid), uid, gid); err != nil {
			return err
		}
	}
	return keepCaps(lasting, lasting)
}

func own(folder string, from, uid, gid int) error {
	if err := syscall.Setresuid(-1, from, -1); err != nil {
		return fmt.Errorf("setresuid: %w", err)
	}
	err := keepCaps(1<<capChown, 1<<capChown|lasting)
	if err == nil {
		err = giveAway(folder, uid, gid)
	}
	if back := syscall.Setresuid(-1, 0, -1); back != nil {
		return fmt.Errorf("setresuid: %w", back)
	}
	// The kernel has changed this with the user.
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0); errno != 0 {
		return fmt.Errorf("prctl(PR_SET_DUMPABLE): %w", errno)
	}
	return err
}

// giveAway begins at the leaves: who has given a folder away may not enter it any more.
func giveAway(path string, uid, gid int) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		inside := filepath.Join(path, entry.Name())
		if entry.IsDir() {
			err = giveAway(inside, uid, gid)
		} else {
			err = os.Lchown(inside, uid, gid)
		}
		if err != nil {
			return err
		}
	}
	return os.Chown(path, uid, gid)
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
	debug.SetMemoryLimit(MemoryLimit)
	syscall.Umask(0) // modes are what the worker asks for
	// Without it another process of the same user could read and steer the helper. It would gain nothing that the
	// user cannot do anyway, so a kernel that refuses is no reason to stop.
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
}

func keepCaps(effective, permitted uint32) error {
	head := struct {
		version uint32
		pid     int32
	}{capVersion3, 0}
	data := [2]struct{ effective, permitted, inheritable uint32 }{{effective, permitted, 0}, {0, 0, 0}}
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

// AsCommand runs a fork with the score that children shall have: the kernel's OOM killer takes commands first. (A command
// may lower its score again; see memory.killShielded.) The caller holds the fork lock.
func AsCommand(fork func()) {
	raised := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(CommandOOMScore)), 0) == nil
	fork()
	if raised {
		// Back to what the container began with; a refusal leaves the agent as killable as its commands, no worse.
		_ = os.WriteFile("/proc/self/oom_score_adj", []byte(agentOOMScore), 0)
	}
}
