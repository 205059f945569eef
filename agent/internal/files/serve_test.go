package files

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandlot.dev/agent/internal/frame"
	"sandlot.dev/agent/internal/mux"
)

// client is the worker's end of a link to Serve.
type client struct {
	t    testing.TB
	link *mux.Link
	dir  string
	done chan error
}

func socketpair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conns := [2]net.Conn{}
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "pair")
		if conns[i], err = net.FileConn(file); err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	return conns[0], conns[1]
}

// start serves a fresh folder and checks in the end that nothing is left running or open.
func start(t testing.TB) *client {
	t.Helper()
	dir := t.TempDir()
	warm, up := socketpair(t) // the runtime's poller has descriptors of its own, from its first use on
	warm.Close()
	up.Close()
	goroutines, fds := runtime.NumGoroutine(), openFds(t)
	a, b := socketpair(t)
	c := &client{t: t, dir: dir, done: make(chan error, 2)}
	c.link = mux.New(a, mux.Worker, func(s *mux.Stream) { s.Reset("unsupported", "") })
	go func() { c.done <- Serve(b, dir) }()
	go func() { c.done <- c.link.Run() }()
	t.Cleanup(func() {
		c.link.Close()
		<-c.done
		<-c.done
		for range 200 {
			if runtime.NumGoroutine() <= goroutines && openFds(t) <= fds {
				return
			}
			runtime.Gosched()
			time.Sleep(5 * time.Millisecond)
		}
		buf := make([]byte, 1<<16)
		t.Errorf("left behind: %d goroutines (%d before), %d descriptors (%d before)\n%s", runtime.NumGoroutine(), goroutines, openFds(t), fds, buf[:runtime.Stack(buf, true)])
	})
	return c
}

func openFds(t testing.TB) int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

type answer struct {
	messages []map[string]any
	data     []byte
	offset   uint64 // of the first data
	code     string // of a RESET
}

func (a *answer) last() map[string]any { return a.messages[len(a.messages)-1] }

func (a *answer) entry() map[string]any {
	e, _ := a.messages[0]["entry"].(map[string]any)
	return e
}

func (a *answer) items(key string) (all []map[string]any) {
	for _, m := range a.messages {
		list, _ := m[key].([]any)
		for _, item := range list {
			all = append(all, item.(map[string]any))
		}
	}
	return all
}

func (c *client) open(request map[string]any) *mux.Stream {
	c.t.Helper()
	s, err := c.link.Open(request)
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// do sends a request with its input and gathers the answer.
func (c *client) do(request map[string]any, input ...[]byte) *answer {
	c.t.Helper()
	s := c.open(request)
	go func() {
		offset := uint64(0)
		for _, piece := range input {
			if s.SendData(0, offset, piece) != nil {
				return
			}
			offset += uint64(len(piece))
		}
		_ = s.End()
	}()
	return c.gather(s)
}

func (c *client) gather(s *mux.Stream) *answer {
	c.t.Helper()
	a := &answer{}
	for {
		item, err := s.Recv()
		var reset *mux.ResetError
		switch {
		case err == io.EOF:
			return a
		case errors.As(err, &reset):
			a.code = reset.Code
			return a
		case err != nil:
			c.t.Error(err)
			return a
		case item.Kind == frame.Data:
			if a.data == nil {
				a.offset = item.Offset
			}
			if item.Offset != a.offset+uint64(len(a.data)) {
				c.t.Errorf("data at %d after %d bytes from %d", item.Offset, len(a.data), a.offset)
			}
			a.data = append(a.data, item.Payload...)
		default:
			if len(item.Payload) > frame.MaxPayload {
				c.t.Errorf("message of %d bytes", len(item.Payload))
			}
			a.messages = append(a.messages, decodeMessage(c.t, item.Payload))
		}
	}
}

// decodeMessage decodes a message with its names as bytes again.
func decodeMessage(t testing.TB, raw []byte) map[string]any {
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Errorf("%v in %s", err, raw)
	}
	return m
}

// want fails unless the answer ended in that RESET, or well for "".
func (c *client) want(code string, a *answer) *answer {
	c.t.Helper()
	if a.code != code {
		c.t.Fatalf("ended with %q, want %q; messages %v", a.code, code, a.messages)
	}
	return a
}

func (c *client) put(name, content string) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	must(c.t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(c.t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

func (c *client) content(name string) string {
	c.t.Helper()
	raw, err := os.ReadFile(filepath.Join(c.dir, name))
	must(c.t, err)
	return string(raw)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// noTemporary fails if a file that was being written is left in the folder.
func (c *client) noTemporary() {
	c.t.Helper()
	names, err := os.ReadDir(c.dir)
	must(c.t, err)
	for _, n := range names {
		if strings.HasPrefix(n.Name(), temporary) {
			c.t.Errorf("%s is left behind", n.Name())
		}
	}
}

type fields = map[string]any

func TestRequests(t *testing.T) {
	c := start(t)
	c.put("f", "x")
	long := strings.Repeat("a/", 2049)
	for _, bad := range []struct {
		code    string
		request fields
	}{
		{"unsupported", fields{"op": "exec.start"}},
		{"unsupported", fields{}},
		{"bad_request", fields{"op": 7}},
		{"bad_request", fields{"op": "file.stat"}},
		{"bad_request", fields{"op": "file.stat", "path": ""}},
		{"bad_request", fields{"op": "file.stat", "path": "a\x00b"}},
		{"bad_request", fields{"op": "file.stat", "path": long}},
		{"bad_request", fields{"op": "file.stat", "path": []string{"f"}}},
		{"bad_request", fields{"op": "file.stat", "path": strings.Repeat("a", 300)}},
		{"not_found", fields{"op": "file.stat", "path": "missing"}},
		{"not_a_directory", fields{"op": "file.stat", "path": "f/x"}},
		{"bad_request", fields{"op": "file.list", "path": ".", "limit": 10001}},
		{"bad_request", fields{"op": "file.list", "path": ".", "limit": -1}},
		{"bad_request", fields{"op": "file.walk", "path": ".", "glob": "[a"}},
		{"bad_request", fields{"op": "file.walk", "path": ".", "glob": long}},
		{"bad_request", fields{"op": "file.walk", "path": ".", "limit": 100001}},
		{"bad_request", fields{"op": "file.walk", "path": ".", "depth": -1}},
		{"bad_request", fields{"op": "file.search", "path": ".", "pattern": ""}},
		{"bad_request", fields{"op": "file.search", "path": ".", "pattern": "(", "regex": true}},
		{"bad_request", fields{"op": "file.search", "path": ".", "pattern": long}},
		{"bad_request", fields{"op": "file.read", "path": "f", "offset": -1}},
		{"bad_request", fields{"op": "file.remove", "path": "/"}},
		{"bad_request", fields{"op": "file.remove", "path": "///./"}},
		{"bad_request", fields{"op": "file.remove", "path": ".."}},
		{"not_a_directory", fields{"op": "file.list", "path": "f"}},
		{"not_a_directory", fields{"op": "file.walk", "path": "f"}},
		{"not_a_directory", fields{"op": "archive.write", "path": "f"}},
		{"not_found", fields{"op": "archive.read", "path": "missing"}},
		{"not_found", fields{"op": "file.watch", "path": "missing"}},
	} {
		if a := c.do(bad.request); a.code != bad.code {
			t.Errorf("%.80v ended with %q, want %q", bad.request, a.code, bad.code)
		}
	}
	if a := c.do(fields{"op": "file.stat", "path": "f"}); a.entry()["path"] != filepath.Join(c.dir, "f") {
		t.Errorf("after all that: %v", a)
	}
}

func TestStat(t *testing.T) {
	c := start(t)
	c.put("d/f", "hello")
	must(t, os.Chmod(filepath.Join(c.dir, "d/f"), 0o640))
	must(t, os.Symlink("d/f", filepath.Join(c.dir, "link")))
	e := c.want("", c.do(fields{"op": "file.stat", "path": "./d//f"})).entry()
	if e["type"] != "file" || e["size"] != 5.0 || e["mode"] != float64(0o640) || e["name"] != "f" || e["mtime_ms"].(float64) < 1e12 {
		t.Errorf("%v", e)
	}
	if e = c.do(fields{"op": "file.stat", "path": "link"}).entry(); e["type"] != "file" || e["target"] != nil {
		t.Errorf("followed: %v", e)
	}
	if e = c.do(fields{"op": "file.stat", "path": "link", "follow": false}).entry(); e["type"] != "symlink" || e["target"] != "d/f" {
		t.Errorf("not followed: %v", e)
	}
	if e = c.do(fields{"op": "file.stat", "path": "/"}).entry(); e["type"] != "directory" || e["path"] != "/" {
		t.Errorf("root: %v", e)
	}
	// After a link, ".." is where the link leads, not where it stands.
	c.put("x/y/z", "")
	must(t, os.Symlink("x/y", filepath.Join(c.dir, "deep")))
	if e = c.do(fields{"op": "file.stat", "path": "deep/../y/z"}).entry(); e == nil {
		t.Error("deep/../y/z was not found")
	}
}

func TestServeEndsWithItsLink(t *testing.T) {
	c := start(t)
	c.do(fields{"op": "file.stat", "path": "."})
	s := c.open(fields{"op": "file.write", "path": "f"})
	must(t, s.SendData(0, 0, []byte("half")))
	for { // until the write is under way
		names, err := os.ReadDir(c.dir)
		must(t, err)
		if len(names) > 0 {
			break
		}
		runtime.Gosched()
	}
	c.link.Close()
	<-c.done
	<-c.done
	c.noTemporary()
	c.done <- nil
	c.done <- nil
}
