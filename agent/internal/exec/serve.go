package exec

import (
	"encoding/json"
	"errors"
	"io"
	"syscall"

	"sandlot.dev/agent/internal/exec/procs"
	"sandlot.dev/agent/internal/frame"
	"sandlot.dev/agent/internal/mux"
)

const listPage = 40 // entries in one message, below a frame's size even if every character is escaped

// Ops are the operations on execs and shells.
func (r *Registry) Ops() map[string]func(*mux.Stream) error {
	return map[string]func(*mux.Stream) error{
		"bind":        r.serveBind,
		"limits":      r.serveLimits,
		"exec.start":  r.serveStart,
		"exec.attach": r.serveAttach,
		"exec.signal": r.serveSignal,
		"exec.kill":   r.serveKill,
		"exec.resize": r.serveResize,
		"exec.list":   r.serveList,
		"exec.forget": r.serveForget,
		"shell.list":  r.serveShells,
		"shell.close": r.serveCloseShell,
	}
}

func parse(s *mux.Stream, v any) error {
	if err := json.Unmarshal(s.Request(), v); err != nil {
		return refuse("bad_request", err.Error())
	}
	return nil
}

func (r *Registry) serveBind(s *mux.Stream) error {
	var q struct {
		Env      map[string]string `json:"env"`
		MaxExecs int               `json:"max_execs"`
	}
	if err := parse(s, &q); err != nil {
		return err
	}
	if err := (&Request{ExecID: "bind", Command: ":", Env: q.Env}).check(); err != nil {
		return refuse("bad_request", err.Error())
	}
	r.Bind(q.Env, q.MaxExecs)
	s.Reply(struct{}{})
	return nil
}

// serveLimits moves the bound of memory that the agent watches; where the kernel does, there is nothing to move.
func (r *Registry) serveLimits(s *mux.Stream) error {
	var q struct {
		MemoryBytes int64 `json:"memory_bytes"`
	}
	if err := parse(s, &q); err != nil {
		return err
	}
	if q.MemoryBytes > 0 && r.memory.watches() {
		r.memory.limit.Store(q.MemoryBytes)
	}
	s.Reply(struct{}{})
	return nil
}

func (r *Registry) serveStart(s *mux.Stream) error {
	var q struct {
		Request
		Offset uint64 `json:"offset"`
	}
	if err := parse(s, &q); err != nil {
		return err
	}
	e, existing, err := r.Start(q.Request)
	if err != nil {
		return err
	}
	// Whoever asks for the same exec again brings the same input: it has it, or is being given it, already.
	takes := e.takeInput
	if existing {
		takes = ignoreInput
	}
	e.serve(s, q.Offset, existing, takes)
	return nil
}

func (r *Registry) serveAttach(s *mux.Stream) error {
	var q struct {
		ExecID string `json:"exec_id"`
		Offset uint64 `json:"offset"`
	}
	if err := parse(s, &q); err != nil {
		return err
	}
	e, err := r.Find(q.ExecID)
	if err != nil {
		return err
	}
	e.serve(s, q.Offset, true, e.takeInput)
	return nil
}

// serve sends an exec's events to one reader and takes its input, until the exec has ended or the reader leaves.
func (e *Exec) serve(s *mux.Stream, offset uint64, existing bool, takeInput func(*mux.Stream)) {
	rd := e.ring.attach(offset)
	defer rd.detach()
	go func() {
		<-s.Done()
		rd.detach()
	}()
	go takeInput(s)
	select {
	case <-e.begun:
	case <-s.Done():
		return
	}
	e.mu.Lock()
	pid := e.pid
	e.mu.Unlock()
	started := struct {
		Event    string `json:"event"`
		PID      int    `json:"pid"`
		Existing bool   `json:"existing"`
	}{"started", pid, existing}
	if s.SendMessage(started) != nil {
		return
	}
	buf := make([]byte, pumpBytes)
	for {
		channel, at, n, exit, ok := rd.next(buf)
		if !ok {
			return
		}
		if exit != nil {
			if s.SendMessage(exit) == nil {
				s.Finish()
			}
			return
		}
		if s.SendData(channel, at, buf[:n]) != nil {
			return
		}
	}
}

// takeInput carries stdin. It ends with the stream.
func (e *Exec) takeInput(s *mux.Stream) {
	<-e.begun
	for {
		item, err := s.Recv()
		e.mu.Lock()
		stdin, terminal := e.stdin, e.terminal
		e.mu.Unlock()
		if errors.Is(err, io.EOF) && stdin != nil {
			if terminal != nil {
				return // a terminal has no end of file; the user types ^D
			}
			e.mu.Lock()
			e.stdin = nil
			e.mu.Unlock()
			stdin.Close()
			return
		}
		if err != nil {
			return
		}
		if item.Kind == frame.Data && item.Channel == 0 && stdin != nil {
			_, _ = stdin.Write(item.Payload) // a command that does not read any more is no error
		}
	}
}

// ignoreInput reads on, so that the sender is not held up, and drops what comes.
func ignoreInput(s *mux.Stream) {
	for {
		if _, err := s.Recv(); err != nil {
			return
		}
	}
}

type execName struct {
	ExecID string `json:"exec_id"`
	Signal int    `json:"signal"`
	Rows   uint16 `json:"rows"`
	Cols   uint16 `json:"cols"`
}

func (r *Registry) named(s *mux.Stream) (execName, *Exec, error) {
	var q execName
	if err := parse(s, &q); err != nil {
		return q, nil, err
	}
	e, err := r.Find(q.ExecID)
	return q, e, err
}

type signalled struct {
	Signalled int `json:"signalled"`
}

func (r *Registry) serveSignal(s *mux.Stream) error {
	q, e, err := r.named(s)
	if err != nil {
		return err
	}
	if q.Signal < 1 || q.Signal > 64 {
		return refuse("bad_request", "signal: 1-64")
	}
	n, err := e.Signal(syscall.Signal(q.Signal))
	if err != nil {
		return err
	}
	s.Reply(signalled{n})
	return nil
}

func (r *Registry) serveKill(s *mux.Stream) error {
	_, e, err := r.named(s)
	if err != nil {
		return err
	}
	s.Reply(signalled{e.Kill()})
	return nil
}

func (r *Registry) serveResize(s *mux.Stream) error {
	q, e, err := r.named(s)
	if err != nil {
		return err
	}
	if err := e.Resize(Pty{q.Rows, q.Cols}); err != nil {
		return err
	}
	s.Reply(struct{}{})
	return nil
}

func (r *Registry) serveForget(s *mux.Stream) error {
	q, _, err := r.named(s)
	if err != nil {
		return err
	}
	if err := r.Forget(q.ExecID); err != nil {
		return err
	}
	s.Reply(struct{}{})
	return nil
}

func (r *Registry) serveList(s *mux.Stream) error {
	type summary struct {
		ExecID     string  `json:"exec_id"`
		State      string  `json:"state"`
		Shell      string  `json:"shell,omitempty"`
		Command    string  `json:"command"`
		StartedMS  int64   `json:"started_ms"`
		OutputEnd  uint64  `json:"output_end"`
		ExitCode   *int    `json:"exit_code,omitempty"`
		DurationMS float64 `json:"duration_ms,omitempty"`
	}
	r.mu.Lock()
	all := make([]summary, 0, len(r.execs))
	for id, e := range r.execs {
		state := "running"
		if e.place != nil {
			state = "done"
		}
		one := summary{ExecID: id, State: state, Shell: e.request.Shell, Command: e.shown, StartedMS: e.started.UnixMilli()}
		end, exit := e.ring.state()
		one.OutputEnd = end
		if exit != nil {
			one.ExitCode, one.DurationMS = &exit.Code, exit.DurationMS
		}
		all = append(all, one)
	}
	r.mu.Unlock()
	for first := true; first || len(all) > 0; first = false {
		n := min(listPage, len(all))
		if err := s.SendMessage(map[string]any{"execs": all[:n]}); err != nil {
			return err
		}
		all = all[n:]
	}
	s.Finish()
	return nil
}

func (r *Registry) serveShells(s *mux.Stream) error {
	type summary struct {
		Name string `json:"name"`
		PID  int    `json:"pid"`
		Cwd  string `json:"cwd"`
		Busy bool   `json:"busy"`
	}
	r.mu.Lock()
	all := make([]summary, 0, len(r.shells))
	for _, sh := range r.shells {
		all = append(all, summary{sh.name, sh.pid, sh.cwd, sh.busy || sh.waiting > 0})
	}
	r.mu.Unlock()
	s.Reply(map[string]any{"shells": all})
	return nil
}

func (r *Registry) serveCloseShell(s *mux.Stream) error {
	var q struct {
		Name string `json:"name"`
	}
	if err := parse(s, &q); err != nil {
		return err
	}
	if err := r.closeShell(q.Name); err != nil {
		return err
	}
	s.Reply(struct{}{})
	return nil
}

// Numbers of the moment, for the agent's info.
func (r *Registry) Numbers() (running, known, processes int, used, limit, kills int64) {
	r.mu.Lock()
	running, known = r.running, len(r.execs)
	r.mu.Unlock()
	return running, known, procs.Count(), r.memory.used(), r.memory.limitBytes(), r.memory.kills()
}

// StartHelper runs a program of the agent's own as the sandbox user.
func (r *Registry) StartHelper(path string, argv []string, files []uintptr, gone func()) error {
	attr := &syscall.ProcAttr{
		Dir: "/", Env: []string{"PATH=/usr/bin:/bin"}, Files: files,
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Credential: r.credential(),
		},
	}
	_, err := r.reaper.start(path, argv, attr, 0, func(ended) { gone() })
	return err
}
