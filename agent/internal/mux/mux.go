// Package mux turns one byte stream into many: streams with ids, requests, messages, data and credit, as the
// protocol says. It bounds what each side can make the other hold: a window of bytes per stream and a number of streams.
package mux

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"sandlot.dev/agent/internal/frame"
)

const (
	Window     = 262144  // bytes of credit that each stream starts with, each way
	maxStreams = 4096    // open at once, as the protocol says
	maxRequest = 4 << 20 // bytes of one request with its PARTs
	maxCredit  = 1 << 31 // a peer that grants more breaks the rules
	// Streams that we open. Programs inside decide how many connections they make, and the worker takes twice as
	// many for abuse.
	openEvery = time.Second / 200
	openBurst = 512
)

var ErrClosed = errors.New("link closed")

// Role of this end: the worker opens odd ids, the agent even ones.
type Side uint32

const (
	Worker Side = 1
	Agent  Side = 0
)

type Link struct {
	conn    io.ReadWriteCloser
	side    Side
	handler func(*Stream)

	wmu  sync.Mutex // one frame at a time on the wire
	wbuf []byte

	mu       sync.Mutex
	streams  map[uint32]*Stream
	lastPeer uint32 // highest id that the peer opened
	nextOwn  uint32
	nextOpen time.Time // when the next stream of ours is due; openBurst of them may come early
	err      error
	done     chan struct{}
}

// New makes a link on a connection whose handshake is over. handler runs in a goroutine of its own for each
// stream that the peer opens; when it returns, a stream that is not over is reset.
func New(conn io.ReadWriteCloser, side Side, handler func(*Stream)) *Link {
	own := uint32(side)
	if own == 0 {
		own = 2
	}
	return &Link{conn: conn, side: side, handler: handler, streams: map[uint32]*Stream{}, nextOwn: own, done: make(chan struct{})}
}

// Done is closed when the link has ended.
func (l *Link) Done() <-chan struct{} { return l.done }

// Close ends the link and every stream on it.
func (l *Link) Close() { l.fail(ErrClosed) }

func (l *Link) fail(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	streams := l.streams
	l.streams = map[uint32]*Stream{}
	close(l.done)
	l.mu.Unlock()
	l.conn.Close()
	for _, s := range streams {
		s.finish(ErrClosed)
	}
}

// Run reads frames until the link ends and says why it ended.
func (l *Link) Run() error {
	r := bufio.NewReaderSize(l.conn, 128<<10)
	var partStream uint32
	var parts []byte
	for {
		f, err := frame.Read(r)
		if err == nil && parts != nil && (f.Stream != partStream || (f.Kind != frame.Part && f.Kind != frame.Open)) {
			err = fmt.Errorf("%w: request broken off", frame.ErrViolation)
		}
		if err == nil {
			switch f.Kind {
			case frame.Part:
				partStream = f.Stream
				parts = append(parts, f.Payload...)
				if len(parts) == 0 {
					parts = []byte{}
				}
				if len(parts) > maxRequest {
					err = fmt.Errorf("%w: request too large", frame.ErrViolation)
				}
			case frame.Open:
				request := f.Payload
				if parts != nil {
					request = append(parts, f.Payload...)
					parts = nil
				}
				err = l.opened(f.Stream, request)
			default:
				err = l.received(f)
			}
		}
		if err != nil {
			l.fail(err)
			return err
		}
	}
}

func (l *Link) opened(id uint32, request []byte) error {
	if len(request) > maxRequest {
		return fmt.Errorf("%w: request too large", frame.ErrViolation)
	}
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return l.err
	}
	if Side(id%2) == l.side || id <= l.lastPeer {
		l.mu.Unlock()
		return fmt.Errorf("%w: stream %d opened out of order", frame.ErrViolation, id)
	}
	l.lastPeer = id
	if len(l.streams) >= maxStreams {
		l.mu.Unlock()
		return l.write(id, frame.Reset, resetPayload("busy", "too many streams"), nil)
	}
	s := newStream(l, id, request)
	l.streams[id] = s
	l.mu.Unlock()
	go l.serve(s)
	return nil
}

// serve runs the handler. A panic costs its stream, not the program: the agent is PID 1, and its end the sandbox's.
func (l *Link) serve(s *Stream) {
	defer func() {
		why := "handler returned early"
		if broken := recover(); broken != nil {
			why = fmt.Sprint("panic: ", broken)
		}
		s.Reset("internal", why) // does nothing to a stream that is over
	}()
	l.handler(s)
}

func (l *Link) received(f frame.Frame) error {
	if f.Stream == 0 {
		switch f.Kind {
		case frame.Ping:
			return l.write(0, frame.Pong, f.Payload, nil)
		case frame.Pong:
			return nil
		}
		return fmt.Errorf("%w: kind %d after the handshake", frame.ErrViolation, f.Kind)
	}
	l.mu.Lock()
	s := l.streams[f.Stream]
	known := f.Stream <= l.lastPeer
	if Side(f.Stream%2) == l.side {
		known = f.Stream < l.nextOwn
	}
	l.mu.Unlock()
	if s == nil {
		if !known {
			return fmt.Errorf("%w: stream %d was never opened", frame.ErrViolation, f.Stream)
		}
		return nil // it was under way when the stream ended
	}
	return s.received(f)
}

// Open opens a stream with a request.
func (l *Link) Open(request any) (*Stream, error) {
	raw, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	time.Sleep(l.openDelay(time.Now()))
	l.wmu.Lock() // ids must reach the wire in growing order
	defer l.wmu.Unlock()
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return nil, ErrClosed
	}
	if len(l.streams) >= maxStreams {
		l.mu.Unlock()
		return nil, errors.New("too many streams")
	}
	id := l.nextOwn
	l.nextOwn += 2
	s := newStream(l, id, nil)
	l.streams[id] = s
	l.mu.Unlock()
	for len(raw) > frame.MaxPayload {
		if err := l.writeLocked(id, frame.Part, raw[:frame.MaxPayload], nil); err != nil {
			return nil, err
		}
		raw = raw[frame.MaxPayload:]
	}
	return s, l.writeLocked(id, frame.Open, raw, nil)
}

func (l *Link) openDelay(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.nextOpen.Before(now) {
		l.nextOpen = now
	}
	l.nextOpen = l.nextOpen.Add(openEvery)
	return l.nextOpen.Add(-openBurst * openEvery).Sub(now)
}

func (l *Link) forget(id uint32) {
	l.mu.Lock()
	delete(l.streams, id)
	l.mu.Unlock()
}

func (l *Link) write(stream uint32, kind frame.Kind, head, body []byte) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	return l.writeLocked(stream, kind, head, body)
}

func (l *Link) writeLocked(stream uint32, kind frame.Kind, head, body []byte) error {
	l.wbuf = frame.Append(l.wbuf[:0], stream, kind, head, body)
	if _, err := l.conn.Write(l.wbuf); err != nil {
		// The reader sees the broken connection too and ends the link; closing makes sure of it.
		l.conn.Close()
		return ErrClosed
	}
	return nil
}

func resetPayload(code, message string) []byte {
	if len(message) > 2000 {
		message = message[:2000]
	}
	raw, err := json.Marshal(ResetError{Code: code, Message: message})
	if err != nil {
		return []byte(`{"code":"internal","message":""}`)
	}
	return raw
}

func creditPayload(n int) []byte {
	return binary.BigEndian.AppendUint32(nil, uint32(n))
}
