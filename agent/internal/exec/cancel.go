package exec

import (
	"syscall"

	"sandlot.dev/agent/internal/exec/procs"
)

// end ends the exec and everything that it started, for a reason; the first reason counts.
func (e *Exec) end(reason string) { e.because(reason)() }

// because records why the exec is being ended and returns what ends it. One that is not yet forked is ended then.
func (e *Exec) because(reason string) (cancel func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.finished || e.reason != "" || (e.over && reason != "output_limit") {
		return func() {}
	}
	e.reason = reason
	if e.cancel == nil || e.over {
		return func() {}
	}
	e.ending.Add(1)
	cancelNow := e.cancelling()
	return func() {
		defer e.ending.Done()
		cancelNow()
	}
}

// cancelling returns what calls cancel. In the lock.
func (e *Exec) cancelling() func() {
	cancel, done := e.cancel, make(chan struct{})
	e.cancelled = done
	return func() {
		defer close(done)
		cancel()
	}
}

// awaitCancel waits until all that a cancelled exec started has been killed, so that its result is true when it says so.
func (e *Exec) awaitCancel() {
	e.mu.Lock()
	cancelled := e.cancelled
	e.mu.Unlock()
	if cancelled != nil {
		<-cancelled
	}
}

// settle is called when the command has ended in its shell. From then on no signal is sent for this exec, and those
// under way have been sent. It says whether they ended the shell.
func (e *Exec) settle() (cancelled bool) {
	e.mu.Lock()
	e.over = true
	cancelled = e.cancelled != nil
	e.mu.Unlock()
	e.ending.Wait()
	return cancelled
}

// Signal sends a signal to every process of the exec.
func (e *Exec) Signal(sig syscall.Signal) (int, error) {
	e.mu.Lock()
	if e.over {
		e.mu.Unlock()
		return 0, nil // what runs in the shell now belongs to another exec
	}
	tag, pid := e.tag, e.pid
	e.ending.Add(1)
	defer e.ending.Done()
	e.mu.Unlock()
	if tag == 0 {
		return 0, refuse("conflict", "it has not begun to run")
	}
	except := 0
	if e.request.Shell != "" {
		except = pid // the shell itself lives on: the signal is for what it runs
	}
	return procs.Signal(tag, sig, except), nil
}

// Kill ends the exec; of one that has ended, what it left in the background.
func (e *Exec) Kill() int {
	e.mu.Lock()
	tag, cancel, finished, over := e.tag, e.cancel, e.finished, e.over
	e.mu.Unlock()
	if over {
		return 0 // as in Signal
	}
	defer procs.FreezeIfStarved()()
	n := 0
	if tag != 0 {
		n = len(procs.Alive(tag))
	}
	if !finished {
		e.end("killed")
	} else if cancel != nil { // also where none was seen: see procs.Kill
		cancel()
	}
	return n
}
