package mux

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"sandlot.dev/agent/internal/frame"
)

// pair connects two links; the returned stop ends both and fails the test if one hangs.
func pair(t *testing.T, serve func(*Stream)) (worker *Link) {
	t.Helper()
	a, b := net.Pipe()
	worker = New(a, Worker, func(*Stream) {})
	agent := New(b, Agent, serve)
	done := make(chan struct{}, 2)
	go func() { _ = worker.Run(); done <- struct{}{} }()
	go func() { _ = agent.Run(); done <- struct{}{} }()
	t.Cleanup(func() {
		worker.Close()
		agent.Close()
		for range 2 {
			select {
			case <-done:
			case <-time.After(5 * time.Second):
				t.Error("a link did not end")
			}
		}
	})
	return worker
}

func echo(s *Stream) {
	for {
		item, err := s.Recv()
		if err != nil {
			s.Finish()
			return
		}
		if err := s.SendData(item.Channel, item.Offset, item.Payload); err != nil {
			return
		}
	}
}

func TestEchoOfMoreThanTheWindow(t *testing.T) {
	worker := pair(t, echo)
	s, err := worker.Open(map[string]string{"op": "echo"})
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("0123456789abcdef"), 8*Window/16)
	go func() {
		_ = s.SendData(0, 0, want)
		_ = s.End()
	}()
	var got []byte
	for {
		item, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if item.Offset != uint64(len(got)) {
			t.Fatalf("offset %d at %d", item.Offset, len(got))
		}
		got = append(got, item.Payload...)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("got %d bytes of %d", len(got), len(want))
	}
}

func TestSlowReaderStallsNobodyElse(t *testing.T) {
	worker := pair(t, func(s *Stream) {
		if strings.Contains(string(s.Request()), "flood") {
			_ = s.SendData(1, 0, make([]byte, 64*Window))
			return
		}
		echo(s)
	})
	if _, err := worker.Open(map[string]string{"op": "flood"}); err != nil {
		t.Fatal(err)
	}
	s, err := worker.Open(map[string]string{"op": "echo"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if err := s.SendData(0, uint64(i), []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLargeRequestTravelsInParts(t *testing.T) {
	sizes := make(chan int, 1)
	worker := pair(t, func(s *Stream) { sizes <- len(s.Request()); s.Finish() })
	if _, err := worker.Open(map[string]string{"command": strings.Repeat("x", 3<<20)}); err != nil {
		t.Fatal(err)
	}
	if n := <-sizes; n < 3<<20 {
		t.Fatalf("request of %d bytes", n)
	}
}

func TestResetReachesBothDirections(t *testing.T) {
	worker := pair(t, func(s *Stream) { s.Reset("not_found", "no such thing") })
	s, err := worker.Open(map[string]string{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Recv()
	var reset *ResetError
	if !errors.As(err, &reset) || reset.Code != "not_found" {
		t.Fatalf("got %v", err)
	}
	if err := s.SendData(0, 0, []byte("x")); err == nil {
		t.Fatal("a reset stream took data")
	}
}

// Each of these is a broken rule; the agent's link must end with a violation, at once.
func TestBrokenRules(t *testing.T) {
	data := func(id uint32, n int) []byte {
		return frame.Append(nil, id, frame.Data, make([]byte, 9), make([]byte, n))
	}
	open := func(id uint32) []byte { return frame.Append(nil, id, frame.Open, []byte("{}"), nil) }
	overrun := open(1)
	for range 5 {
		overrun = append(overrun, data(1, frame.MaxData)...)
	}
	cases := map[string][]byte{
		"never opened":      data(7, 1),
		"wrong parity":      open(2),
		"id used twice":     append(open(3), open(3)...),
		"id going back":     append(open(5), open(3)...),
		"credit overrun":    overrun,
		"data after end":    append(append(open(1), frame.Append(nil, 1, frame.End, nil, nil)...), data(1, 1)...),
		"two ends":          append(append(open(1), frame.Append(nil, 1, frame.End, nil, nil)...), frame.Append(nil, 1, frame.End, nil, nil)...),
		"too much credit":   append(open(1), frame.Append(nil, 1, frame.Credit, []byte{0xff, 0xff, 0xff, 0xff}, nil)...),
		"hello again":       frame.Append(nil, 0, frame.Hello, []byte("{}"), nil),
		"part broken off":   append(frame.Append(nil, 1, frame.Part, []byte("{"), nil), frame.Append(nil, 0, frame.Ping, make([]byte, 8), nil)...),
		"reset without why": append(open(1), frame.Append(nil, 1, frame.Reset, []byte("nonsense"), nil)...),
	}
	for name, wire := range cases {
		t.Run(name, func(t *testing.T) {
			a, b := net.Pipe()
			agent := New(b, Agent, func(s *Stream) { <-s.Done() })
			ended := make(chan error, 1)
			go func() { ended <- agent.Run() }()
			go func() { _, _ = io.Copy(io.Discard, a) }()
			go func() { _, _ = a.Write(wire) }()
			select {
			case err := <-ended:
				if !errors.Is(err, frame.ErrViolation) {
					t.Fatalf("ended by %v", err)
				}
			case <-time.After(5 * time.Second):
				t.Fatal("the link went on")
			}
			a.Close()
		})
	}
}

func FuzzLink(f *testing.F) {
	f.Add(frame.Append(frame.Append(nil, 1, frame.Open, []byte(`{"op":"x"}`), nil), 1, frame.Data, make([]byte, 9), []byte("abc")))
	f.Add(frame.Append(frame.Append(nil, 1, frame.Part, []byte(`{"op"`), nil), 1, frame.Open, []byte(`:1}`), nil))
	f.Fuzz(func(t *testing.T, wire []byte) {
		a, b := net.Pipe()
		agent := New(b, Agent, echo)
		ended := make(chan struct{})
		go func() { _ = agent.Run(); close(ended) }()
		go func() { _, _ = io.Copy(io.Discard, a) }()
		_, _ = a.Write(wire)
		a.Close()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatal("the link did not end with its connection")
		}
	})
}

func TestPanicCostsItsStreamOnly(t *testing.T) {
	worker := pair(t, func(s *Stream) {
		if strings.Contains(string(s.Request()), "panic") {
			panic("at the disco")
		}
		echo(s)
	})
	s, err := worker.Open(map[string]string{"op": "panic"})
	if err != nil {
		t.Fatal(err)
	}
	var reset *ResetError
	if _, err := s.Recv(); !errors.As(err, &reset) || reset.Code != "internal" || !strings.Contains(reset.Message, "disco") {
		t.Fatalf("got %v", err)
	}
	s, err = worker.Open(map[string]string{"op": "echo"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SendData(0, 0, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if item, err := s.Recv(); err != nil || string(item.Payload) != "x" {
		t.Fatal(item, err)
	}
}

// S1: programs inside must not be able to make the agent open streams so fast that the worker takes it for abuse.
func TestOwnStreamsAreOpenedAtABoundedRate(t *testing.T) {
	l, now := New(nil, Agent, nil), time.Now()
	var last time.Duration
	for range openBurst {
		last = l.openDelay(now)
	}
	if last > 0 {
		t.Fatalf("the last of a burst waits for %v", last)
	}
	for range 200 {
		last = l.openDelay(now)
	}
	if last != time.Second {
		t.Fatalf("200 more wait for %v", last)
	}
	if got := l.openDelay(now.Add(time.Hour)); got > 0 {
		t.Fatalf("an hour later one waits for %v", got)
	}
}
