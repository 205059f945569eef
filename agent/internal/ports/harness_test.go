package ports

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"sandlot.dev/agent/internal/frame"
	"sandlot.dev/agent/internal/mux"
)

type fields = map[string]any

// client is the worker's end of a net link.
type client struct {
	t      testing.TB
	keeper *Keeper
	link   *mux.Link
	opened chan *mux.Stream // streams of accepted connections
	done   chan error
}

func socketpair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	must(t, err)
	conns := [2]net.Conn{}
	for i, fd := range fds {
		conns[i], err = unixConn(os.NewFile(uintptr(fd), "pair"))
		must(t, err)
	}
	return conns[0], conns[1]
}

// start serves a sandbox of its own and checks in the end that nothing is left running or open.
func start(t testing.TB) *client {
	t.Helper()
	warm, up := socketpair(t) // the runtime's poller has descriptors of its own, from its first use on
	warm.Close()
	up.Close()
	goroutines, fds := runtime.NumGoroutine(), openFds(t)
	keeper := NewKeeper()
	t.Cleanup(func() {
		keeper.close()
		for range 200 {
			if runtime.NumGoroutine() <= goroutines && openFds(t) <= fds {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
		buf := make([]byte, 1<<16)
		t.Errorf("left behind: %d goroutines (%d before), %d descriptors (%d before)\n%s", runtime.NumGoroutine(), goroutines, openFds(t), fds, buf[:runtime.Stack(buf, true)])
	})
	return dial(t, keeper)
}

// dial makes a helper with a link to it, as PID 1 does; a former helper ends.
func dial(t testing.TB, keeper *Keeper) *client {
	t.Helper()
	lent, err := keeper.Lend()
	must(t, err)
	helper, err := unixConn(lent)
	must(t, err)
	a, b := socketpair(t)
	c := &client{t: t, keeper: keeper, opened: make(chan *mux.Stream, connectionLimit), done: make(chan error, 2)}
	c.link = mux.New(a, mux.Worker, func(s *mux.Stream) { c.opened <- s; <-s.Done() })
	go func() { c.done <- Serve(b, helper) }()
	go func() { c.done <- c.link.Run() }()
	t.Cleanup(c.hangUp)
	return c
}

// hangUp breaks the link and returns when the helper has ended.
func (c *client) hangUp() {
	c.link.Close()
	<-c.done
	<-c.done
	c.done <- nil // for another call
	c.done <- nil
}

// close is for tests alone: the sockets of PID 1 end with the sandbox.
func (k *Keeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.helper != nil {
		k.helper.Close()
	}
	for address, socket := range k.sockets {
		delete(k.sockets, address)
		_ = syscall.Close(socket)
	}
}

func openFds(t testing.TB) int {
	names, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(names)
}

type answer struct {
	messages []map[string]any
	data     []byte
	code     string // of a RESET
}

func (c *client) open(request fields) *mux.Stream {
	c.t.Helper()
	s, err := c.link.Open(request)
	must(c.t, err)
	return s
}

// do sends a request with its input and gathers the answer.
func (c *client) do(request fields, input ...[]byte) *answer {
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
			if item.Offset != uint64(len(a.data)) {
				c.t.Errorf("data at %d after %d bytes", item.Offset, len(a.data))
			}
			a.data = append(a.data, item.Payload...)
		default:
			message := map[string]any{}
			if err := json.Unmarshal(item.Payload, &message); err != nil {
				c.t.Errorf("%v in %s", err, item.Payload)
			}
			a.messages = append(a.messages, message)
		}
	}
}

// want fails unless the answer ended in that RESET, or well for "".
func (c *client) want(code string, a *answer) *answer {
	c.t.Helper()
	if a.code != code {
		c.t.Fatalf("ended with %q, want %q; messages %v", a.code, code, a.messages)
	}
	return a
}

// listen asks for a listener, which must come.
func (c *client) listen(address string) (s *mux.Stream, bound string) {
	c.t.Helper()
	s = c.open(fields{"op": "port.listen", "address": address})
	item, err := s.Recv()
	must(c.t, err)
	var said struct{ Address string }
	must(c.t, json.Unmarshal(item.Payload, &said))
	return s, said.Address
}

// accepted is the next connection that came through a listener.
func (c *client) accepted() *mux.Stream {
	c.t.Helper()
	select {
	case s := <-c.opened:
		return s
	case <-time.After(10 * time.Second):
		c.t.Fatal("no connection came")
		return nil
	}
}

// came is dial from inside.
func came(t testing.TB, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	return conn.(*net.TCPConn)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
