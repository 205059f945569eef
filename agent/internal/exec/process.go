package exec

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sandlot.dev/agent/internal/exec/procs"
)

const (
	longCommand = 100 << 10 // beyond this a command does not fit into one argument (128 KiB) and goes by a file
	// When the sandbox has as many processes as it may, one more is tried for this long: many short commands at once
	// come and go.
	forkPatience = 3 * time.Second
	forkPause    = 10 * time.Millisecond
	maxNamed     = 200 // characters of a program's name in an error: the exit must fit into a frame
)

// streams are the descriptors of one command: its ends, to be closed after the fork, and ours.
type streams struct {
	child  [3]*os.File
	stdin  io.WriteCloser
	out    *os.File
	err    *os.File
	master *os.File
}

func (s *streams) closeChild() {
	for i, f := range s.child {
		if f != nil && (i == 0 || f != s.child[i-1]) { // a terminal is all three, a merged output two
			f.Close()
		}
	}
}

func (s *streams) closeOurs() {
	for _, f := range []*os.File{s.out, s.err, s.master} {
		if f != nil {
			f.Close()
		}
	}
	if s.stdin != nil && s.master == nil {
		s.stdin.Close()
	}
}

func (r *Registry) openStreams(q *Request) (s *streams, err error) {
	s = &streams{}
	if q.Pty != nil {
		master, slave, err := openPty(r.setup.UID, *q.Pty)
		if err != nil {
			return nil, err
		}
		s.master, s.stdin = master, master
		s.child = [3]*os.File{slave, slave, slave}
		return s, nil
	}
	fail := func(err error) (*streams, error) {
		s.closeChild()
		s.closeOurs()
		return nil, err
	}
	if q.Stdin {
		w, err := newPipe(&s.child[0], false)
		if err != nil {
			return fail(err)
		}
		s.stdin = w
	} else if s.child[0], err = os.Open("/dev/null"); err != nil {
		return fail(err)
	}
	if s.out, err = newPipe(&s.child[1], true); err != nil {
		return fail(err)
	}
	if q.Merge {
		s.child[2] = s.child[1]
	} else if s.err, err = newPipe(&s.child[2], true); err != nil {
		return fail(err)
	}
	return s, nil
}

// newPipe makes a pipe to or from a command. Our end never blocks a thread; the command's end blocks, as programs expect.
func newPipe(child **os.File, weRead bool) (ours *os.File, err error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return nil, err
	}
	mine, theirs := fds[0], fds[1]
	if !weRead {
		mine, theirs = theirs, mine
	}
	if err := syscall.SetNonblock(mine, true); err != nil {
		syscall.Close(mine)
		syscall.Close(theirs)
		return nil, err
	}
	*child = os.NewFile(uintptr(theirs), "pipe")
	return os.NewFile(uintptr(mine), "pipe"), nil
}

func (r *Registry) startProcess(e *Exec) error {
	q := &e.request
	cwd := q.Cwd
	if cwd == "" {
		cwd = r.setup.Workspace
	}
	if st, err := os.Stat(cwd); err == nil && !st.IsDir() {
		return refuse("bad_request", "cwd "+cwd+" is not a folder")
	} else if errors.Is(err, os.ErrNotExist) {
		return refuse("bad_request", "cwd "+cwd+" does not exist")
	}
	term := "dumb"
	if q.Pty != nil {
		term = "xterm-256color"
	}
	argv, script, err := r.argv(q)
	if err != nil {
		return err
	}
	s, err := r.openStreams(q)
	if err != nil {
		removeScript(script)
		return refuse("resource_exhausted", err.Error())
	}
	tag := r.newTag()
	e.mu.Lock()
	e.tag = tag
	e.mu.Unlock()
	oomBefore := r.memory.kills()
	attr := &syscall.ProcAttr{
		Dir: cwd, Env: r.environ(q.Env, cwd, term),
		Files: []uintptr{s.child[0].Fd(), s.child[1].Fd(), s.child[2].Fd()},
		Sys: &syscall.SysProcAttr{
			Setsid: true, Setctty: q.Pty != nil,
			Credential: r.credential(tag),
		},
	}
	began := time.Now()
	gone := make(chan ended, 1)
	pid, err := patiently(func() (int, error) { return r.fork(argv, attr, tag, func(end ended) { gone <- end }) })
	s.closeChild()
	if err != nil {
		s.closeOurs()
		removeScript(script)
		if code, text := startFailure(err); code != 0 {
			r.neverRan(e, began, code, fmt.Sprintf("%.*s: %s", maxNamed, argv[0], text))
			return nil
		}
		return refuse("resource_exhausted", "the command could not be started: "+err.Error())
	}
	e.mu.Lock()
	e.pid, e.stdin, e.terminal = pid, s.stdin, s.master
	e.cancel = func() { procs.Terminate(tag) }
	if e.reason != "" { // somebody was faster than the fork
		go e.cancelling()()
	}
	e.mu.Unlock()
	close(e.begun)
	go r.follow(e, s, gone, began, oomBefore, script)
	return nil
}

// patiently forks again while there is no room for another process.
func patiently(fork func() (int, error)) (pid int, err error) {
	deadline := time.Now().Add(forkPatience)
	for {
		if pid, err = fork(); !errors.Is(err, syscall.EAGAIN) || time.Now().After(deadline) {
			return pid, err
		}
		time.Sleep(forkPause)
	}
}

// argv is what is executed, and the script file that a long command needs.
func (r *Registry) argv(q *Request) (argv []string, script string, err error) {
	if q.Command == "" {
		return q.Argv, "", nil
	}
	shell := r.bash
	if shell == "" {
		shell = r.sh
	}
	if shell == "" {
		return nil, "", refuse("unsupported", "the image has no shell: use argv")
	}
	argv = []string{shell}
	if filepath.Base(shell) == "busybox" {
		argv = append(argv, "sh")
	}
	if len(q.Command) <= longCommand {
		return append(argv, "-c", q.Command), "", nil
	}
	script, err = r.writeScript(q.Command)
	if err != nil {
		return nil, "", refuse("resource_exhausted", err.Error())
	}
	return append(argv, script), script, nil
}

func removeScript(path string) {
	if path != "" {
		_ = os.RemoveAll(filepath.Dir(path)) // a left-over costs room in the agent's own tmpfs, no more
	}
}

// fork finds the program in PATH. The agent may not look into folders of the sandbox user, so that what it cannot
// rule out it tries.
func (r *Registry) fork(argv []string, attr *syscall.ProcAttr, tag uint32, done func(ended)) (int, error) {
	if strings.Contains(argv[0], "/") {
		return r.reaper.start(argv[0], argv, attr, tag, done)
	}
	path := ""
	for _, pair := range attr.Env {
		if value, ok := strings.CutPrefix(pair, "PATH="); ok {
			path = value
		}
	}
	var first error = syscall.ENOENT
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) { // the empty one too
			dir = filepath.Join(attr.Dir, dir)
		}
		candidate := filepath.Join(dir, argv[0])
		if _, err := os.Stat(candidate); errors.Is(err, os.ErrNotExist) {
			continue
		}
		pid, err := r.reaper.start(candidate, argv, attr, tag, done)
		if err == nil || (!errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EACCES)) {
			return pid, err
		}
		if errors.Is(err, syscall.EACCES) {
			first = err
		}
	}
	return 0, first
}

// startFailure tells the command's own fault, which is a result, from the sandbox's (code 0).
func startFailure(err error) (code int, text string) {
	switch {
	case errors.Is(err, syscall.ENOENT):
		return 127, "command not found"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return 126, "permission denied"
	case errors.Is(err, syscall.ENOEXEC):
		return 126, "exec format error"
	case errors.Is(err, syscall.E2BIG), errors.Is(err, syscall.ENAMETOOLONG): // gVisor says the latter
		return 126, "argument list too long"
	case errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP),
		errors.Is(err, syscall.ETXTBSY), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ELIBBAD):
		return 126, err.Error()
	}
	return 0, ""
}

func (r *Registry) neverRan(e *Exec, began time.Time, code int, text string) {
	close(e.begun)
	e.ring.write(e.request.errors(), []byte(text+"\n"))
	r.finish(e, &Exit{Code: code, Reason: "start_failed", Error: text}, began, r.memory.kills())
}

// follow waits for the command's end, then for its output, then files the exit.
func (r *Registry) follow(e *Exec, s *streams, gone chan ended, began time.Time, oomBefore int64, script string) {
	var pumps []*pump
	if s.master != nil {
		pumps = append(pumps, startPump(s.master, 1, e.sink, r.linger))
	} else {
		pumps = append(pumps, startPump(s.out, 1, e.sink, r.linger))
		if s.err != nil {
			pumps = append(pumps, startPump(s.err, 2, e.sink, r.linger))
		}
	}
	stop := e.arm()
	end := <-gone
	stop()
	for _, p := range pumps {
		p.ending()
	}
	for _, p := range pumps {
		<-p.done
	}
	e.awaitCancel()
	removeScript(script)
	r.finish(e, exitOf(end), began, oomBefore)
}

func exitOf(end ended) *Exit {
	exit := &Exit{
		Reason:     "exited",
		UserMS:     float64(end.usage.Utime.Nano()) / 1e6,
		SystemMS:   float64(end.usage.Stime.Nano()) / 1e6,
		PeakMemory: end.usage.Maxrss << 10,
	}
	if end.status.Signaled() {
		exit.Signal = int(end.status.Signal())
		exit.Code = 128 + exit.Signal
	} else {
		exit.Code = end.status.ExitStatus()
	}
	return exit
}

// sink takes output in and ends an exec that has passed a limit that kills.
func (e *Exec) sink(channel byte, p []byte) {
	if e.ring.write(channel, p) && e.request.OnLimit == "kill" {
		// The reason stands before the output is all taken in, however fast the command has ended; killing takes time.
		go e.because("output_limit")()
	}
}

// arm starts the clock of the timeout.
func (e *Exec) arm() (stop func()) {
	if e.request.TimeoutMS == 0 {
		return func() {}
	}
	timer := time.AfterFunc(time.Duration(e.request.TimeoutMS)*time.Millisecond, func() { e.end("timeout") })
	return func() { timer.Stop() }
}

// Resize changes the terminal's size.
func (e *Exec) Resize(size Pty) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.terminal == nil {
		return refuse("bad_request", "this exec has no terminal, or has ended")
	}
	return resize(e.terminal, size)
}
