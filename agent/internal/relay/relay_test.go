package relay

import (
	"bufio"
	"encoding/base64"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// started is a relay with the worker's ends of its input and output.
type started struct {
	path string
	in   *io.PipeWriter
	out  *bufio.Reader
	done chan error
}

func start(t *testing.T, path string, patience time.Duration) *started {
	t.Helper()
	inRead, in := io.Pipe()
	outRead, out := io.Pipe()
	s := &started{path, in, bufio.NewReaderSize(outRead, maxLine), make(chan error, 1)}
	go func() { s.done <- Serve(path, path+".held", inRead, out, patience) }()
	t.Cleanup(func() { in.Close(); outRead.Close() })
	return s
}

func (s *started) dial(t *testing.T) net.Conn {
	t.Helper()
	for range 500 {
		if conn, err := net.Dial("unix", s.path); err == nil {
			t.Cleanup(func() { conn.Close() })
			return conn
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("nobody listens")
	return nil
}

func (s *started) next(t *testing.T) (number uint32, kind byte, data string) {
	t.Helper()
	line, err := s.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	piece, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(line, "\n"))
	if err != nil || len(piece) < headBytes {
		t.Fatal(err, line)
	}
	return uint32(piece[0])<<24 | uint32(piece[1])<<16 | uint32(piece[2])<<8 | uint32(piece[3]), piece[4], string(piece[5:])
}

func TestCarriesBothWaysAndEnds(t *testing.T) {
	s := start(t, filepath.Join(t.TempDir(), "agent.sock"), Patience)
	conn := s.dial(t)
	number, kind, _ := s.next(t)
	if kind != Opened {
		t.Fatal(kind)
	}
	if _, err := conn.Write([]byte("up\x00\n")); err != nil {
		t.Fatal(err)
	}
	if n, kind, data := s.next(t); n != number || kind != Data || data != "up\x00\n" {
		t.Fatalf("%d %d %q", n, kind, data)
	}
	if _, err := s.in.Write(Line(number, Data, []byte("down"))); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if n, err := conn.Read(buf); err != nil || string(buf[:n]) != "down" {
		t.Fatal(n, err)
	}
	other := s.dial(t)
	second, kind, _ := s.next(t)
	if kind != Opened || second == number {
		t.Fatal(second, kind)
	}
	other.Close()
	if n, kind, _ := s.next(t); n != second || kind != Closed {
		t.Fatal(n, kind)
	}
	if _, err := s.in.Write(Line(number, Closed, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(buf); err != io.EOF {
		t.Fatal(err)
	}
	s.in.Close()
	if err := <-s.done; err != io.EOF {
		t.Fatal(err)
	}
}

// The agent must dial the next relay, so it may not think that its old connection is good.
func TestTheNextRelayTakesOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	first := start(t, path, Patience)
	conn := first.dial(t)
	first.next(t)
	// In this process both would make the socket under the same number.
	second := start(t, path, Patience)
	if err := <-first.done; err != errReplaced {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Fatal(err)
	}
	second.dial(t)
	if _, kind, _ := second.next(t); kind != Opened {
		t.Fatal(kind)
	}
}

func TestASilentWorkerEndsIt(t *testing.T) {
	s := start(t, filepath.Join(t.TempDir(), "agent.sock"), 300*time.Millisecond)
	for range 4 {
		time.Sleep(100 * time.Millisecond)
		if _, err := s.in.Write(Line(0, Alive, nil)); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-s.done; err == nil || !strings.Contains(err.Error(), "silent") {
		t.Fatal(err)
	}
}

func TestWhatIsNoPieceEndsIt(t *testing.T) {
	for _, line := range []string{"!\n", "AAAA\n", string(Line(1, 9, nil)), strings.Repeat("A", maxLine+1)} {
		s := start(t, filepath.Join(t.TempDir(), "agent.sock"), Patience)
		go s.in.Write([]byte(line))
		if err := <-s.done; err == nil || err == io.EOF {
			t.Fatalf("%.20q: %v", line, err)
		}
	}
}

func TestAnEndedAgentIsTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	file, err := Hold(path + ".held")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, path, Patience)
	s.dial(t)
	if _, kind, _ := s.next(t); kind != Opened {
		t.Fatal(kind)
	}
	time.Sleep(2 * lookPause)
	file.Close()
	if _, kind, _ := s.next(t); kind != Gone {
		t.Fatal(kind)
	}
	if err := <-s.done; err != errGone {
		t.Fatal(err)
	}
}
