package ports

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandlot.dev/agent/internal/mux"
)

func serving(t *testing.T, network, address string, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Skip(err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn)
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-stopped
	})
	return l.Addr().String()
}

// echoAfterEnd answers only after the end of what it is sent: it needs the half-close.
func echoAfterEnd(conn net.Conn) {
	got, _ := io.ReadAll(conn)
	_, _ = conn.Write(append([]byte("got "), got...))
}

func TestConnect(t *testing.T) {
	dir, err := os.MkdirTemp("", "s")
	must(t, err)
	defer os.RemoveAll(dir)
	address := serving(t, "tcp", "127.0.0.1:0", echoAfterEnd)
	path := serving(t, "unix", filepath.Join(dir, "sock"), echoAfterEnd)
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	c := start(t)
	big := bytes.Repeat([]byte("x"), 1<<20)
	for _, request := range []fields{
		{"network": "tcp", "address": address},
		{"network": "tcp", "address": "localhost:" + port},
		{"network": "unix", "address": path},
	} {
		request["op"] = "port.connect"
		a := c.want("", c.do(request, big, []byte("end")))
		if a.messages[0]["connected"] != true || string(a.data) != "got "+string(big)+"end" {
			t.Errorf("%v: %d bytes, %v", request, len(a.data), a.messages)
		}
	}
	for _, row := range []struct{ code, network, address string }{
		{"bad_request", "tcp", "8.8.8.8:53"},
		{"bad_request", "tcp", "0.0.0.0:" + port},
		{"bad_request", "tcp", "[::]:" + port},
		{"bad_request", "tcp", "[::ffff:127.0.0.1]:" + port},
		{"bad_request", "tcp", "[::1%lo]:" + port},
		{"bad_request", "tcp", "example.com:80"},
		{"bad_request", "tcp", "localhost.:" + port},
		{"bad_request", "tcp", ":" + port},
		{"bad_request", "tcp", "127.1:" + port},
		{"bad_request", "tcp", "127.0.0.1:0"},
		{"bad_request", "tcp", "127.0.0.1:http"},
		{"bad_request", "tcp", "127.0.0.1:65536"},
		{"bad_request", "udp", address},
		{"bad_request", "unix", "relative"},
		{"bad_request", "unix", "@abstract"},
		{"bad_request", "unix", "/" + strings.Repeat("x", 107)},
		{"not_found", "unix", "/nowhere/at/all"},
		{"refused", "tcp", "127.0.0.1:1"},
	} {
		if a := c.do(fields{"op": "port.connect", "network": row.network, "address": row.address}); a.code != row.code {
			t.Errorf("%v ended with %q", row, a.code)
		}
	}
}

func connected(t *testing.T, c *client, address string) *mux.Stream {
	t.Helper()
	s := c.open(fields{"op": "port.connect", "network": "tcp", "address": address})
	_, err := s.Recv()
	must(t, err)
	return s
}

func TestConnectBrokenOff(t *testing.T) {
	ended := make(chan error, 1)
	address := serving(t, "tcp", "127.0.0.1:0", func(conn net.Conn) {
		_, err := io.Copy(io.Discard, conn)
		ended <- err
	})
	deaf := make(chan struct{})
	release := make(chan struct{})
	deafAddress := serving(t, "tcp", "127.0.0.1:0", func(conn net.Conn) {
		close(deaf)
		<-release
	})
	resetting := serving(t, "tcp", "127.0.0.1:0", func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1)) // so that it is connected before it breaks
		_ = conn.(*net.TCPConn).SetLinger(0)
	})
	speaking := serving(t, "tcp", "127.0.0.1:0", func(conn net.Conn) {
		_, _ = conn.Write([]byte("bye"))
	})
	c := start(t)
	// The worker resets: the other side sees a broken connection.
	s := connected(t, c, address)
	must(t, s.SendData(0, 0, []byte("x")))
	s.Reset("cancelled", "")
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a reset came through as a clean end")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the connection stays open")
	}
	// The other side resets: so does the stream.
	s = connected(t, c, resetting)
	must(t, s.SendData(0, 0, []byte("x")))
	c.want("gone", c.gather(s))
	// The other side ends first: END comes, and ours ends it all.
	s = connected(t, c, speaking)
	item, err := s.Recv()
	if err != nil || string(item.Payload) != "bye" {
		t.Fatal(item, err)
	}
	if _, err := s.Recv(); err != io.EOF {
		t.Fatal(err)
	}
	must(t, s.End())
	// A side that reads nothing holds nothing up when the stream is over; start's cleanup sees what is left.
	s = connected(t, c, deafAddress)
	<-deaf
	go func() {
		for offset, block := uint64(0), make([]byte, 60000); s.SendData(0, offset, block) == nil; offset += 60000 {
		}
	}()
	time.Sleep(50 * time.Millisecond)
	s.Reset("cancelled", "")
	close(release)
}

// busyListener listens with a queue of one connection, which is full.
func busyListener(t *testing.T) (fd int, address string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { syscall.Close(fd) })
	must(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	must(t, syscall.Listen(fd, 1))
	bound, err := syscall.Getsockname(fd)
	must(t, err)
	address = net.JoinHostPort("127.0.0.1", strconv.Itoa(bound.(*syscall.SockaddrInet4).Port))
	for {
		conn, err := net.DialTimeout("tcp", address, 50*time.Millisecond)
		if err != nil {
			return fd, address
		}
		t.Cleanup(func() { conn.Close() })
	}
}

func TestFullQueueIsTriedUntilItHasRoom(t *testing.T) {
	fd, address := busyListener(t)
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	go func() {
		time.Sleep(2 * firstAttempt)
		if accepted, _, err := syscall.Accept(fd); err == nil {
			syscall.Close(accepted)
		}
	}()
	began := time.Now()
	conn, err := dialPatiently(ctx, "tcp", address)
	must(t, err)
	conn.Close()
	if took := time.Since(began); took < 2*firstAttempt {
		t.Errorf("connected after %v, before the queue had room", took)
	}
}

func TestFullQueueIsBusyInTheEnd(t *testing.T) {
	_, address := busyListener(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*firstAttempt)
	defer cancel()
	if conn, err := dialPatiently(ctx, "tcp", address); err == nil {
		conn.Close()
		t.Error("connected")
	} else if code := dialCode(err); code != "busy" {
		t.Errorf("%v is %q", err, code)
	}
}
