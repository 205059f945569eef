package ports

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"sandlot.dev/agent/internal/mux"
)

// listen asks for a listener; streams that it opens come through the channel.
func listen(t *testing.T, address string) (listener *mux.Stream, bound string, opened chan *mux.Stream, err error) {
	t.Helper()
	a, b := net.Pipe()
	opened = make(chan *mux.Stream)
	var agent *mux.Link
	agent = mux.New(b, mux.Agent, func(s *mux.Stream) { _ = ServeListen(agent, s) })
	worker := mux.New(a, mux.Worker, func(s *mux.Stream) { opened <- s; <-s.Done() })
	go func() { _ = agent.Run() }()
	go func() { _ = worker.Run() }()
	t.Cleanup(func() { worker.Close(); agent.Close() })
	s, err := worker.Open(map[string]string{"op": "port.listen", "address": address})
	if err != nil {
		t.Fatal(err)
	}
	item, err := s.Recv()
	if err != nil {
		return nil, "", nil, err
	}
	var answer struct{ Address string }
	if err := json.Unmarshal(item.Payload, &answer); err != nil {
		t.Fatal(err)
	}
	return s, answer.Address, opened, nil
}

func TestOnlyLoopbackIsListenedOn(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "8.8.8.8:53", "example.com:80", "127.0.0.1", "", "127.0.0.1.example:1"} {
		var reset *mux.ResetError
		if _, _, _, err := listen(t, address); !errors.As(err, &reset) || reset.Code != "bad_request" {
			t.Errorf("%q: %v", address, err)
		}
	}
	_, bound, _, err := listen(t, "127.0.0.1:0")
	if err != nil || !Loopback(bound) {
		t.Fatal(bound, err)
	}
	var reset *mux.ResetError
	if _, _, _, err := listen(t, bound); !errors.As(err, &reset) || reset.Code != "refused" {
		t.Fatalf("taken: %v", err)
	}
}

func TestConnectionIsCarriedBothWays(t *testing.T) {
	_, bound, opened, err := listen(t, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", bound)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s := <-opened
	if _, err := conn.Write([]byte("request")); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for {
		item, err := s.Recv()
		if err == io.EOF { // half-closed: the answer can still go back
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, item.Payload...)
	}
	if string(got) != "request" {
		t.Fatalf("%q", got)
	}
	if err := s.SendData(0, 0, []byte("answer")); err != nil {
		t.Fatal(err)
	}
	if err := s.End(); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(conn); err != nil || string(answer) != "answer" {
		t.Fatalf("%q %v", answer, err)
	}
}

// A peer inside that neither reads nor writes must not outlive its stream, or it would hold the agent's descriptors.
func TestStalledConnectionEndsWithItsStream(t *testing.T) {
	_, bound, opened, err := listen(t, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", bound)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s := <-opened
	full := make(chan struct{})
	go func() { // more than the kernel's buffers and the window hold
		defer close(full)
		_ = s.SendData(0, 0, make([]byte, 32<<20))
	}()
	select {
	case <-full:
		t.Fatal("somebody took it all")
	case <-time.After(100 * time.Millisecond):
	}
	s.Reset("cancelled", "")
	<-full
	if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, net.ErrClosed) || isTimeout(err) {
		t.Fatalf("the connection goes on: %v", err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func TestListenerEndsWithItsStream(t *testing.T) {
	s, bound, _, err := listen(t, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.End(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != io.EOF {
		t.Fatalf("ended by %v", err)
	}
	if conn, err := net.Dial("tcp", bound); err == nil {
		conn.Close()
		t.Fatal("still listens")
	}
}
