package exec

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	maxShells     = 64
	maxQueue      = 64
	maxStatusLine = 8192
)

// shell is a bash that lives from one exec to the next. It reads one line for each exec from a control FIFO that only
// the agent can write to. Command, input and outputs go through files and FIFOs with names of 128 random bits in a
// folder that cannot be listed; the exit code comes back through a FIFO of its own. So nothing that a command prints is
// ever read as control, and outputs of two execs, or of what an earlier one left in the background, never mix.
type shell struct {
	name    string
	turn    chan struct{} // holds a token while an exec runs
	waiting int
	closed  bool

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
	r.mu.Unlock()
	called := make(chan struct{})
	e.mu.Lock()
	e.cancel = func() { close(called) } // while it waits; replaced when it runs
	e.mu.Unlock()
	go r.takeTurn(e, sh, called)
	return nil
}

func (r *Registry) takeTurn(e *Exec, sh *shell, called chan struct{}) {
	leave := func() {
		r.mu.Lock()
		sh.waiting--
		r.mu.Unlock()
	}
	select {
	case sh.turn <- struct{}{}:
	case <-called:
		leave()
		close(e.begun)
		r.finish(e, &Exit{Code: 137, Signal: 9, Reason: "killed"}, time.Now(), r.memory.kills())
		return
	}
	leave()
	began := time.Now()
	if err := r.runInShell(e, sh, began); err != nil {
		r.neverRan(e, began, 126, err.Error())
	}
	<-sh.turn
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
	if st, err := os.Stat(cwd); err != nil || !st.IsDir() {
		cwd = r.setup.Workspace
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		control.Close()
		os.RemoveAll(dir)
		return err
	}
	defer null.Close()
	sh.tag = r.newTag()
	gone := make(chan struct{})
	attr := &syscall.ProcAttr{
		Dir: cwd, Env: r.environ(env, cwd, "dumb"),
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd()},
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Credential: &syscall.Credential{Uid: r.setup.UID, Gid: r.setup.GID, Groups: []uint32{r.setup.GID, sh.tag}},
		},
	}
	argv := []string{"bash", "--norc", "--noprofile", filepath.Join(dir, "control")}
	pid, err := r.reaper.start(r.bash, argv, attr, func(end ended) { sh.end = end; close(gone) })
	if err != nil {
		control.Close()
		os.RemoveAll(dir)
		return err
	}
	r.mu.Lock()
	sh.pid, sh.control, sh.dir, sh.gone = pid, control, dir, gone
	r.mu.Unlock()
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
	killTagged(sh.tag)
	sh.control.Close()
	os.RemoveAll(sh.dir)
	r.mu.Lock()
	sh.pid, sh.gone = 0, nil
	r.mu.Unlock()
}

// desk is the folder of one exec in a shell.
type desk struct {
	dir        string
	status     *os.File
	statusName string
	out, err   *os.File
	in         *fifoInput
	input      string
}

func (d *desk) close() {
	if d.status != nil {
		d.status.Close()
	}
	os.RemoveAll(d.dir)
}

func (r *Registry) layDesk(q *Request) (d *desk, err error) {
	d = &desk{input: "/dev/null"}
	if d.dir, err = r.privateDir(); err != nil {
		return nil, err
	}
	fail := func(err error) (*desk, error) {
		for _, f := range []*os.File{d.out, d.err} {
			if f != nil {
				f.Close()
			}
		}
		d.close()
		return nil, err
	}
	if err = os.WriteFile(filepath.Join(d.dir, "command"), []byte(q.Command), 0o644); err != nil {
		return fail(err)
	}
	if d.out, err = makeFifo(filepath.Join(d.dir, "out"), 0o622); err != nil {
		return fail(err)
	}
	if d.err, err = makeFifo(filepath.Join(d.dir, "err"), 0o622); err != nil {
		return fail(err)
	}
	d.statusName = filepath.Join(d.dir, randomName())
	if d.status, err = makeFifo(d.statusName, 0o622); err != nil {
		return fail(err)
	}
	if q.Stdin {
		d.input = filepath.Join(d.dir, "in")
		if err = mkfifo(d.input, 0o644); err != nil {
			return fail(err)
		}
		d.in = &fifoInput{path: d.input, over: make(chan struct{})}
	}
	return d, nil
}

// line is what bash executes for one exec. Under `set -e` a failing command ends bash here, as it ends any script.
func (d *desk) line(cwd string) string {
	var b strings.Builder
	if cwd != "" {
		fmt.Fprintf(&b, "builtin cd -- %s 2>%s/err; ", quote(cwd), d.dir)
	}
	fmt.Fprintf(&b, `IFS= builtin read -r -d '' __sandlot <%[1]s/command || :; builtin eval "$__sandlot" <%[2]s >%[1]s/out 2>%[1]s/err; `+
		`builtin printf '%%d %%s\0' "$?" "$PWD" >%[3]s`+"\n", d.dir, d.input, d.statusName)
	return b.String()
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func (r *Registry) runInShell(e *Exec, sh *shell, began time.Time) error {
	oomBefore := r.memory.kills()
	if sh.closed {
		return errors.New("the shell was closed")
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
	d, err := r.layDesk(&e.request)
	if err != nil {
		return fmt.Errorf("the shell could not be given its files: %w", err)
	}
	defer d.close()
	gone := sh.gone
	outs := []*pump{startPump(d.out, 1, e.sink, r.lingerFifo(d.dir, "out")), startPump(d.err, 2, e.sink, r.lingerFifo(d.dir, "err"))}
	e.mu.Lock()
	e.pid, e.tag = sh.pid, sh.tag
	if d.in != nil {
		e.stdin = d.in
	}
	cancelled := e.reason != ""
	tag := sh.tag
	e.cancel = func() { r.terminate(tag) }
	e.mu.Unlock()
	close(e.begun)
	cpu := readCPU(sh.pid)
	line := exports(e.request.Env) + d.line(e.request.Cwd)
	if cancelled { // while it waited for its turn
		line = fmt.Sprintf("builtin printf '137 %%s\\0' \"$PWD\" >%s\n", d.statusName)
	}
	if _, err := sh.control.WriteString(line); err != nil {
		_ = syscall.Kill(sh.pid, syscall.SIGKILL) // a shell that cannot be told anything has ended
	}
	stop := e.arm()
	code, cwd, ended := waitStatus(d.status, gone)
	stop()
	if d.in != nil {
		close(d.in.over)
	}
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
		sh.cwd = cwd
		after := readCPU(sh.pid)
		exit.UserMS, exit.SystemMS = after.user-cpu.user, after.system-cpu.system
	}
	r.finish(e, exit, began, oomBefore)
	return nil
}

// exports gives an exec's own variables to the shell. They stay, as an export typed into it would.
func exports(env map[string]string) string {
	var b strings.Builder
	for name, value := range env {
		if shellName.MatchString(name) {
			fmt.Fprintf(&b, "builtin export %s=%s\n", name, quote(value))
		}
	}
	return b.String()
}

// waitStatus waits for the shell's report, or its end.
func waitStatus(status *os.File, gone chan struct{}) (code int, cwd string, ended bool) {
	type report struct {
		code int
		cwd  string
	}
	got := make(chan report, 1)
	go func() {
		var text []byte
		buf := make([]byte, 512)
		for len(text) < maxStatusLine {
			n, err := status.Read(buf)
			text = append(text, buf[:n]...)
			if i := bytes.IndexByte(text, 0); i >= 0 {
				number, dir, _ := strings.Cut(string(text[:i]), " ")
				code, err := strconv.Atoi(number)
				if err != nil || code < 0 || code > 255 {
					code = 255
				}
				got <- report{code, dir}
				return
			}
			if err != nil {
				return
			}
		}
	}()
	select {
	case rep := <-got:
		return rep.code, rep.cwd, false
	case <-gone:
		select {
		case rep := <-got: // it reported, and ended afterwards: both are true, the report is the command's
			return rep.code, rep.cwd, false
		default:
			_ = status.SetReadDeadline(time.Unix(1, 0)) // ends the reader
			return 0, "", true
		}
	}
}

// lingerFifo keeps reading what a background child prints, from a descriptor that is no writer itself and so sees the end.
func (r *Registry) lingerFifo(dir, name string) func(c io.Closer) func() {
	path := filepath.Join(dir, name)
	return func(c io.Closer) func() {
		reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return func() {}
		}
		_ = c.Close() // the end that kept the FIFO open for writing
		release := r.linger(reader)
		go func() {
			defer release()
			defer reader.Close()
			discard(reader)
		}()
		return func() {}
	}
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
		killTagged(tag)
		<-gone
	}
	sh.turn <- struct{}{} // an exec that ran in it has seen the end by now
	if sh.gone != nil {
		r.bury(sh)
	}
	<-sh.turn // what still waits for the shell is told that it was closed
	return nil
}

func (r *Registry) privateDir() (string, error) {
	dir := filepath.Join(r.setup.RunDir, randomName())
	if err := os.Mkdir(dir, 0o711); err != nil {
		return "", err
	}
	return dir, nil
}

func (r *Registry) writeScript(text string) (string, error) {
	dir, err := r.privateDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "command")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		os.RemoveAll(dir)
		return "", err
	}
	return path, nil
}

func randomName() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

func mkfifo(path string, mode os.FileMode) error {
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// makeFifo makes a FIFO and opens it for both, so that neither open nor read ever sees it without a peer.
func makeFifo(path string, mode os.FileMode) (*os.File, error) {
	if err := mkfifo(path, mode); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
}

// fifoInput writes to a shell's exec. It is opened when bash has come to read: what is written into a FIFO that
// nobody else has opened is lost when it is closed.
type fifoInput struct {
	path string
	file *os.File
	over chan struct{} // closed when the exec has ended
}

func (f *fifoInput) open() error {
	for f.file == nil {
		file, err := os.OpenFile(f.path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			f.file = file
			return nil
		}
		if !errors.Is(err, syscall.ENXIO) {
			return err
		}
		select {
		case <-f.over:
			return io.ErrClosedPipe
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

func (f *fifoInput) Write(p []byte) (int, error) {
	if err := f.open(); err != nil {
		return 0, err
	}
	return f.file.Write(p)
}

// Close gives the reader its end of file; one that waits for a writer is met first.
func (f *fifoInput) Close() error {
	if err := f.open(); err != nil {
		return nil
	}
	return f.file.Close()
}
