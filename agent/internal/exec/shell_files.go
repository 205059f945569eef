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
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	maxFolder     = 4096              // characters of the shell's folder that it tells
	maxStatusLine = 4*maxFolder + 100 // bytes
)

// shellFiles are what one exec in a shell is given through: a folder of its own, with a FIFO for each stream.
type shellFiles struct {
	dir        string
	status     *os.File
	statusName string
	out, err   *os.File   // err is nil where the two are merged
	holds      []*os.File // keep the outputs from ending while one command after the other opens and closes them
	in         *fifoInput
	input      string
}

// releaseOutputs: from now on an output ends with its last writer, which may be a child in the background.
func (fs *shellFiles) releaseOutputs() {
	for _, f := range fs.holds {
		f.Close()
	}
}

func (fs *shellFiles) close() {
	if fs.status != nil {
		fs.status.Close()
	}
	os.RemoveAll(fs.dir)
}

func (r *Registry) makeShellFiles(q *Request) (fs *shellFiles, err error) {
	fs = &shellFiles{input: "/dev/null"}
	if fs.dir, err = r.privateDir(); err != nil {
		return nil, err
	}
	fail := func(err error) (*shellFiles, error) {
		for _, f := range []*os.File{fs.out, fs.err} {
			if f != nil {
				f.Close()
			}
		}
		fs.releaseOutputs()
		fs.close()
		return nil, err
	}
	if err = os.WriteFile(filepath.Join(fs.dir, "command"), []byte(q.Command), 0o644); err != nil {
		return fail(err)
	}
	if fs.out, err = fs.output("out"); err != nil {
		return fail(err)
	}
	if !q.Merge {
		if fs.err, err = fs.output("err"); err != nil {
			return fail(err)
		}
	}
	fs.statusName = filepath.Join(fs.dir, randomName())
	if fs.status, err = makeFifo(fs.statusName, 0o622); err != nil {
		return fail(err)
	}
	if q.Stdin {
		fs.input = filepath.Join(fs.dir, "in")
		if err = mkfifo(fs.input, 0o644); err != nil {
			return fail(err)
		}
		fs.in = &fifoInput{path: fs.input, over: make(chan struct{}), met: make(chan struct{})}
	}
	return fs, nil
}

func (fs *shellFiles) output(name string) (reader *os.File, err error) {
	path := filepath.Join(fs.dir, name)
	hold, err := makeFifo(path, 0o622)
	if err != nil {
		return nil, err
	}
	fs.holds = append(fs.holds, hold)
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// line is what bash executes for one exec. Under `set -e` a failing command ends bash here, as it ends any script.
// In a folder that cannot be entered nothing is run: the command was not meant for another one.
// The report is a line of its own: after a quote that is never closed, bash drops the rest of the line that it was on,
// and ends instead of reading the next one.
func (fs *shellFiles) line(cwd string) string {
	failures, second := fs.dir+"/err", fs.dir+"/err"
	if fs.err == nil {
		failures, second = fs.dir+"/out", "&1"
	}
	enter := ""
	if cwd != "" {
		enter = fmt.Sprintf("builtin cd -- %s 2>%s && ", quote(cwd), failures)
	}
	return fmt.Sprintf(`%[1]s{ IFS= builtin read -r -d '' __sandlot <%[2]s/command || :; builtin eval "$__sandlot" <%[3]s >%[2]s/out 2>%[6]s; }`+"\n"+
		`builtin printf '%%d %%s\0' "$?" "${PWD:0:%[4]d}" >%[5]s`+"\n", enter, fs.dir, fs.input, maxFolder, fs.statusName, second)
}

var shellName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

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

// waitStatus waits for the shell's report, or its end. If it reported and ended afterwards, the report is the command's.
func waitStatus(status *os.File, gone chan struct{}) (code int, cwd string, ended bool) {
	got := make(chan []byte, 1)
	go func() {
		var text []byte
		buf := make([]byte, 512)
		for {
			n, err := status.Read(buf)
			text = append(text, buf[:n]...)
			if err != nil || bytes.IndexByte(text, 0) >= 0 || len(text) > maxStatusLine {
				got <- text
				return
			}
		}
	}()
	var text []byte
	select {
	case text = <-got:
	case <-gone:
		_ = status.SetReadDeadline(time.Unix(1, 0)) // ends the reader
		text = append(<-got, rest(status)...)
		if bytes.IndexByte(text, 0) < 0 {
			return 0, "", true
		}
	}
	text, _, _ = bytes.Cut(text, []byte{0})
	number, dir, _ := strings.Cut(string(text), " ")
	code, err := strconv.Atoi(number)
	if err != nil || code < 0 || code > 255 {
		code = 255
	}
	return code, dir, false
}

// rest is what lies in a FIFO, up to a status line's length, read without waiting.
func rest(f *os.File) []byte {
	_ = f.SetReadDeadline(time.Time{}) // cannot fail where setting it did not
	conn, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	buf := make([]byte, maxStatusLine)
	n := 0
	_ = conn.Read(func(fd uintptr) bool { n, _ = syscall.Read(int(fd), buf); return true }) // nothing there is an answer too
	return buf[:max(0, n)]
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
	over chan struct{} // closed when the exec has ended
	met  chan struct{} // closed when file is open, or never will be
	file *os.File
}

// meet opens the FIFO. bash does not run the command before, so it is done at once and not when input comes.
func (f *fifoInput) meet() {
	defer close(f.met)
	for {
		file, err := os.OpenFile(f.path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			f.file = file
		}
		if !errors.Is(err, syscall.ENXIO) {
			return
		}
		select {
		case <-f.over:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

func (f *fifoInput) Write(p []byte) (int, error) {
	<-f.met
	if f.file == nil {
		return 0, io.ErrClosedPipe
	}
	return f.file.Write(p)
}

// Close gives the reader its end of file; one that waits for a writer is met first.
func (f *fifoInput) Close() error {
	<-f.met
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}
