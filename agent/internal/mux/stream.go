package mux

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"sandlot.dev/agent/internal/frame"
)

// ResetError is how a stream ends when either side gives it up.
type ResetError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *ResetError) Error() string { return e.Code + ": " + e.Message }

// Item is what a stream receives: a Message (Channel and Offset unused) or Data.
type Item struct {
	Kind    frame.Kind // frame.Message or frame.Data
	Channel byte
	Offset  uint64
	Payload []byte
	whole   []byte // the frame's payload that Payload is a part of
	cost    int
}

// Release gives the item's memory back once nobody looks at Payload any more. It may be left out.
func (i Item) Release() { frame.Release(i.whole) }

type Stream struct {
	link    *Link
	id      uint32
	request []byte

	mu       sync.Mutex
	arrived  *sync.Cond // the inbox grew, or the stream is over
	granted  *sync.Cond // credit grew, or the stream is over
	inbox    []Item
	holds    int // bytes that the peer has sent and the application has not taken
	owed     int // bytes taken and not yet given back as credit
	credit   int64
	sentEnd  bool
	gotEnd   bool
	over     error // set once; io.EOF when both sides ended well
	overChan chan struct{}
}

func newStream(l *Link, id uint32, request []byte) *Stream {
	s := &Stream{link: l, id: id, request: request, credit: Window, overChan: make(chan struct{})}
	s.arrived = sync.NewCond(&s.mu)
	s.granted = sync.NewCond(&s.mu)
	return s
}

func (s *Stream) ID() uint32 { return s.id }

// Request is the OPEN payload of a stream that the peer opened.
func (s *Stream) Request() []byte { return s.request }

// Done is closed when the stream is over: reset, or the link is gone, or both sides ended.
func (s *Stream) Done() <-chan struct{} { return s.overChan }

func (s *Stream) received(f frame.Frame) error {
	s.mu.Lock()
	if s.over != nil {
		s.mu.Unlock()
		return nil
	}
	switch f.Kind {
	case frame.Message, frame.Data:
		if s.gotEnd {
			s.mu.Unlock()
			return fmt.Errorf("%w: data after end", frame.ErrViolation)
		}
		item := Item{Kind: f.Kind, Payload: f.Payload, whole: f.Payload, cost: len(f.Payload)}
		if f.Kind == frame.Data {
			item.Channel = f.Payload[0]
			item.Offset = binary.BigEndian.Uint64(f.Payload[1:9])
			item.Payload = f.Payload[frame.DataHead:]
		}
		s.holds += item.cost
		if s.holds+s.owed > Window {
			s.mu.Unlock()
			return fmt.Errorf("%w: credit overrun on stream %d", frame.ErrViolation, s.id)
		}
		s.inbox = append(s.inbox, item)
		s.arrived.Signal()
	case frame.Credit:
		s.credit += int64(binary.BigEndian.Uint32(f.Payload))
		if s.credit > maxCredit {
			s.mu.Unlock()
			return fmt.Errorf("%w: too much credit", frame.ErrViolation)
		}
		s.granted.Broadcast()
	case frame.End:
		if s.gotEnd {
			s.mu.Unlock()
			return fmt.Errorf("%w: two ends", frame.ErrViolation)
		}
		s.gotEnd = true
		s.arrived.Broadcast()
		if s.sentEnd {
			s.overLocked(io.EOF)
		}
	case frame.Reset:
		reset := &ResetError{}
		if err := json.Unmarshal(f.Payload, reset); err != nil {
			s.mu.Unlock()
			return fmt.Errorf("%w: reset: %v", frame.ErrViolation, err)
		}
		s.overLocked(reset)
	default:
		s.mu.Unlock()
		return fmt.Errorf("%w: kind %d on a stream", frame.ErrViolation, f.Kind)
	}
	over := s.over != nil
	s.mu.Unlock()
	if over {
		s.link.forget(s.id)
	}
	return nil
}

func (s *Stream) overLocked(err error) {
	if s.over != nil {
		return
	}
	s.over = err
	close(s.overChan)
	s.arrived.Broadcast()
	s.granted.Broadcast()
}

func (s *Stream) finish(err error) {
	s.mu.Lock()
	s.overLocked(err)
	s.mu.Unlock()
}

// Recv returns the next item; io.EOF after the peer's END, *ResetError after a reset, ErrClosed when the link is gone.
func (s *Stream) Recv() (Item, error) {
	s.mu.Lock()
	for len(s.inbox) == 0 {
		if s.gotEnd {
			s.mu.Unlock()
			return Item{}, io.EOF
		}
		if s.over != nil {
			err := s.over
			s.mu.Unlock()
			return Item{}, err
		}
		s.arrived.Wait()
	}
	item := s.inbox[0]
	s.inbox[0] = Item{}
	s.inbox = s.inbox[1:]
	s.holds -= item.cost
	s.owed += item.cost
	give := 0
	if s.owed >= Window/2 && s.over == nil && !s.gotEnd {
		give, s.owed = s.owed, 0
	}
	s.mu.Unlock()
	if give > 0 {
		if err := s.link.write(s.id, frame.Credit, creditPayload(give), nil); err != nil {
			return Item{}, err
		}
	}
	return item, nil
}

// spend waits until n bytes may be sent.
func (s *Stream) spend(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.credit < int64(n) && s.over == nil {
		s.granted.Wait()
	}
	if s.over != nil {
		if s.over == io.EOF {
			return ErrClosed
		}
		return s.over
	}
	if s.sentEnd {
		return ErrClosed
	}
	s.credit -= int64(n)
	return nil
}

// SendMessage sends a JSON message, waiting for credit.
func (s *Stream) SendMessage(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(raw) > frame.MaxPayload {
		return fmt.Errorf("message of %d bytes", len(raw))
	}
	if err := s.spend(len(raw)); err != nil {
		return err
	}
	return s.link.write(s.id, frame.Message, raw, nil)
}

// SendData sends bytes in as many frames as they need, waiting for credit. offset is that of p's first byte.
func (s *Stream) SendData(channel byte, offset uint64, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), frame.MaxData)
		if err := s.spend(n + frame.DataHead); err != nil {
			return err
		}
		var head [frame.DataHead]byte
		head[0] = channel
		binary.BigEndian.PutUint64(head[1:], offset)
		if err := s.link.write(s.id, frame.Data, head[:], p[:n]); err != nil {
			return err
		}
		p = p[n:]
		offset += uint64(n)
	}
	return nil
}

// End says that this side has sent all.
func (s *Stream) End() error {
	s.mu.Lock()
	if s.over != nil || s.sentEnd {
		s.mu.Unlock()
		return nil
	}
	s.sentEnd = true
	s.granted.Broadcast()
	s.mu.Unlock()
	err := s.link.write(s.id, frame.End, nil, nil)
	s.mu.Lock()
	over := s.gotEnd
	if over {
		s.overLocked(io.EOF)
	}
	s.mu.Unlock()
	if over {
		s.link.forget(s.id)
	}
	return err
}

// Reset gives the stream up. It does nothing to a stream that is over.
func (s *Stream) Reset(code, message string) {
	s.mu.Lock()
	if s.over != nil {
		s.mu.Unlock()
		return
	}
	s.overLocked(&ResetError{Code: code, Message: message})
	s.mu.Unlock()
	s.link.forget(s.id)
	_ = s.link.write(s.id, frame.Reset, resetPayload(code, message), nil) // a dead link has ended the stream already
}

// Reply answers a one-answer request: the message and END.
func (s *Stream) Reply(v any) {
	if err := s.SendMessage(v); err != nil {
		s.Reset("internal", err.Error())
		return
	}
	_ = s.End() // a dead link has ended the stream already
	s.drain()
}

// drain waits for the peer's END, dropping what it still sends, so that the stream is over for both.
func (s *Stream) drain() {
	for {
		if _, err := s.Recv(); err != nil {
			return
		}
	}
}

// Finish ends the stream after the last message and waits for the peer's END.
func (s *Stream) Finish() {
	_ = s.End() // as in Reply
	s.drain()
}
