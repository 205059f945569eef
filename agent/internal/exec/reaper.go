package exec

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"sandlot.dev/agent/internal/exec/procs"
	"sandlot.dev/agent/internal/walls"
)

// ended is what wait4 says of a process.
type ended struct {
	status syscall.WaitStatus
	usage  syscall.Rusage
}

// reaper forks and reaps. PID 1 inherits every orphan, so one loop waits for all, and no one else ever waits.
type reaper struct {
	mu      sync.Mutex // held from fork to registration: an early death waits for its record
	waiters map[int]func(ended)
}

func newReaper() *reaper {
	r := &reaper{waiters: map[int]func(ended){}}
	chld := make(chan os.Signal, 1)
	signal.Notify(chld, syscall.SIGCHLD)
	go func() {
		for range chld {
			r.reap()
		}
	}()
	return r
}

func (r *reaper) reap() {
	for {
		var e ended
		pid, err := syscall.Wait4(-1, &e.status, syscall.WNOHANG, &e.usage)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		r.mu.Lock()
		done := r.waiters[pid]
		delete(r.waiters, pid)
		r.mu.Unlock()
		if done != nil {
			done(e)
		}
	}
}

// start forks and execs, and the child has the tag; done is called once, from the reaper's loop, and must not block.
func (r *reaper) start(path string, argv []string, attr *syscall.ProcAttr, tag uint32, done func(ended)) (pid int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	walls.AsCommand(func() {
		err = procs.Marked(tag, func() (err error) { pid, err = syscall.ForkExec(path, argv, attr); return err })
	})
	if pid > 0 {
		r.waiters[pid] = done
	}
	return pid, err
}
