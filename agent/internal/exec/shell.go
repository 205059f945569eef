package exec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"sandlot.dev/agent/internal/exec/procs"
)

const (
	maxShells = 64
	maxQueue  = 64
)

var errShellClosed = errors.New("the shell was closed")

// shell is a bash that lives from one exec to the next. It reads one line for each exec from a control FIFO that only
// the agent can write to. Command, input and outputs go through files and FIFOs with names of 128 random bits in a
// folder that cannot be listed; the exit code comes back through a FIFO of its own. So nothing that a command prints is
// ever read as control, and outputs of two execs, or of what an earlier one left in the background, never mix.
type shell struct {
	name string
	turn chan struct{} // holds a token while an exec runs

	// Under the registry's lock; who holds the turn is the only one to change them but for the first two.
	waiting int
	closed  bool
	busy    bool // with an exec whose end is not told yet; the turn is held a moment longer
	pid     int
	tag     uint32
	control *os.File
	dir     string
	gone    chan struct{} // closed when bash has ended
	end     ended
	cwd     string // where the last exec left off
}

func (r *Registry) startInShell(e *Exec) error {
	if r.bash == "" {
		return refuse("unsupported", "the image has no bash: persistent shells need one")
	}
	r.mu.Lock()
	sh := r.shells[e.request.Shell]
	if sh == nil {
		if len(r.shells) >= maxShells {
			r.mu.Unlock()
			return refuse("busy", "too many shells")
		}
		sh = &shell{name: e.request.Shell, turn: make(chan struct{}, 1), cwd: r.setup.Workspace}
		r.shells[sh.name] = sh
	}
	if sh.waiting >= maxQueue {
		r.mu.Unlock()
		return refuse("busy", "too many execs wait for this shell")
	}
	sh.waiting++
	first := false
	select { // at once if it is free: who comes later must not overtake
	case sh.turn <- struct{}{}:
		first = true
	default:
	}
	r.mu.Unlock()
	called := make(chan struct{})
	e.mu.Lock()
	e.cancel = func() { close(called) } // while it waits; replaced when it runs
	if e.reason != "" {
		close(called)
	}
	e.mu.Unlock()
	go r.takeTurn(e, sh, called, first)
	return nil
}

func (r *Registry) takeTurn(e *Exec, sh *shell, called chan struct{}, first bool) {
	leave := func(busy bool) {
		r.mu.Lock()
		sh.waiting--
		sh.busy = sh.busy || busy
		r.mu.Unlock()
	}
	if !first {
		select {
		case sh.turn <- struct{}{}:
		case <-called:
			leave(false)
			close(e.begun)
			r.finish(e, &Exit{Code: 137, Signal: 9, Reason: "killed"}, time.Now(), r.memory.kills())
			return
		}
	}
	leave(true)
	began := time.Now()
	if err := r.runInShell(e, sh, began); err != nil {
		r.setFree(sh)
		r.neverRan(e, began, 126, err.Error())
	}
	<-sh.turn
}

// setFree comes before an end is told: who hears of it finds the shell free.
func (r *Registry) setFree(sh *shell) {
	r.mu.Lock()
	sh.busy = false
	r.mu.Unlock()
}

// launch starts the bash behind a shell.
func (r *Registry) launch(sh *shell, env map[string]string) error {
	dir, err := r.privateDir()
	if err != nil {
		return err
	}
	control, err := makeFifo(filepath.Join(dir, "control"), 0o644)
	if err != nil {
		os.RemoveAll(dir)
		return err
	}
	cwd := sh.cwd
	if st, err := os.Stat(cwd); err != nil || !st.IsDir() || underProc(cwd) {
		cwd = r.setup.Workspace
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		control.Close()
		os.RemoveAll(dir)
		return err
	}
	defer null.Close()
	tag := r.newTag()
	gone := make(chan struct{})
	attr := &syscall.ProcAttr{
		Dir: cwd, Env: r.environ(env, cwd, "dumb"),
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd()},
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Credential: r.credential(tag),
		},
	}
	argv := []string{"bash", "--norc", "--noprofile", filepath.Join(dir, "control")}
	start := func() (int, error) {
		return r.reaper.start(r.bash, argv, attr, tag, func(end ended) { sh.end = end; close(gone) })
	}
	pid, err := patiently(start)
	if err != nil && cwd != r.setup.Workspace { // the folder may be one that its user has shut
		attr.Dir = r.setup.Workspace
		pid, err = patiently(start)
	}
	if err != nil {
		control.Close()
		os.RemoveAll(dir)
		return err
	}
	r.mu.Lock()
	sh.pid, sh.tag, sh.control, sh.dir, sh.gone = pid, tag, control, dir, gone
	closed := sh.closed
	r.mu.Unlock()
	if closed { // meanwhile; who closes it waits for the turn, and buries it
		return errShellClosed
	}
	// Errors then read "bash: line 3: …", as a user expects.
	_, err = control.WriteString("BASH_ARGV0=bash\n")
	return err
}

func (sh *shell) dead() bool {
	if sh.gone == nil {
		return true
	}
	select {
	case <-sh.gone:
		return true
	default:
		return false
	}
}

// bury clears away what a shell that has ended leaves: its children too.
func (r *Registry) bury(sh *shell) {
	procs.Kill(sh.tag)
	sh.control.Close()
	os.RemoveAll(sh.dir)
	r.mu.Lock()
	sh.pid, sh.gone = 0, nil
	r.mu.Unlock()
}

func (r *Registry) runInShell(e *Exec, sh *shell, began time.Time) error {
	oomBefore := r.memory.kills()
	r.mu.Lock()
	closed := sh.closed
	r.mu.Unlock()
	if closed {
		return errShellClosed
	}
	died := sh.gone != nil && sh.dead()
	if died {
		r.bury(sh) // it ended between two execs, as by a child of its own
	}
	if sh.dead() {
		if err := r.launch(sh, nil); err != nil {
			return fmt.Errorf("the shell could not be started: %w", err)
		}
	}
	fs, err := r.makeShellFiles(&e.request)
	if err != nil {
		return fmt.Errorf("the shell could not be given its files: %w", err)
	}
	defer fs.close()
	gone := sh.gone
	outs := []*pump{startPump(fs.out, 1, e.sink, r.linger)}
	if fs.err != nil {
		outs = append(outs, startPump(fs.err, 2, e.sink, r.linger))
	}
	e.mu.Lock()
	e.pid, e.tag = sh.pid, sh.tag
	if fs.in != nil {
		e.stdin = fs.in
		go fs.in.meet()
	}
	cancelled := e.reason != ""
	tag := sh.tag
	e.cancel = func() { procs.Terminate(tag) }
	e.mu.Unlock()
	close(e.begun)
	cpu := procs.ReadCPU(sh.pid)
	line := exports(e.request.Env) + fs.line(e.request.Cwd)
	if cancelled { // while it waited for its turn
		line = fmt.Sprintf("builtin printf '137 %%s\\0' \"$PWD\" >%s\n", fs.statusName)
	}
	// A long line waits for bash to read it. Should bash end first, burying it closes control, and so ends this.
	control := sh.control
	go func() { _, _ = control.WriteString(line) }()
	stop := e.arm()
	code, cwd, ended := waitStatus(fs.status, gone)
	stop()
	if e.settle() && !ended {
		<-gone // a kill came as the command ended: the next one must not be given to a bash that dies
	}
	if fs.in != nil {
		close(fs.in.over)
	}
	fs.releaseOutputs()
	for _, p := range outs {
		p.ending()
	}
	for _, p := range outs {
		<-p.done
	}
	exit := &Exit{Reason: "exited", Code: code, ShellNew: died}
	if ended {
		exit = exitOf(sh.end)
		exit.ShellEnded, exit.ShellNew = true, died
		r.bury(sh)
	} else {
		r.mu.Lock()
		sh.cwd = cwd
		r.mu.Unlock()
		after := procs.ReadCPU(sh.pid)
		exit.UserMS, exit.SystemMS = after.User-cpu.User, after.System-cpu.System
	}
	r.setFree(sh)
	r.finish(e, exit, began, oomBefore)
	return nil
}

func (r *Registry) closeShell(name string) error {
	r.mu.Lock()
	sh := r.shells[name]
	r.mu.Unlock()
	if sh == nil {
		return refuse("not_found", "no shell with this name")
	}
	r.mu.Lock()
	delete(r.shells, name)
	sh.closed = true
	tag, gone := sh.tag, sh.gone
	r.mu.Unlock()
	if gone != nil {
		procs.Kill(tag)
		<-gone
	}
	sh.turn <- struct{}{} // an exec that ran in it has seen the end by now
	if sh.gone != nil {
		r.bury(sh)
	}
	<-sh.turn // what still waits for the shell is told that it was closed
	return nil
}
