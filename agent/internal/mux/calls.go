package mux

import (
	"sync"
	"time"
)

// Calls counts what is being served, so that a process does not end under a call that must still clean up.
type Calls struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

// Enter says whether a call may begin; then Leave must follow.
func (c *Calls) Enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.inside.Add(1)
	return true
}

func (c *Calls) Leave() { c.inside.Done() }

// Finish lets no call in any more and waits for those inside, for a bounded time.
func (c *Calls) Finish(limit time.Duration) {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		c.inside.Wait()
		close(idle)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C: // a call stuck in the kernel; the process ends and takes it along
	}
}
