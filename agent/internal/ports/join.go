package ports

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"sandlot.dev/agent/internal/frame"
	"sandlot.dev/agent/internal/mux"
)

const (
	flushLimit = 10 * time.Second // to hand over what is left when both sides of the stream have ended
	firstRead  = 8 << 10          // bytes: a thousand idle connections shall cost little
)

// joinConnected copies both ways until both sides have ended, or either broke off. END and shutdown stand for each
// other, and so do RESET and an aborted connection.
func joinConnected(s *mux.Stream, conn net.Conn) {
	setLinger(conn, 0)    // if this process is killed, the program must see a broken connection, not an end
	var ended atomic.Bool // this side has sent END
	outward := make(chan struct{})
	go func() {
		defer close(outward)
		if err := sendConnected(s, conn); err != nil {
			s.Reset("gone", "the connection broke: "+err.Error())
			return
		}
		ended.Store(true)
		_ = s.End() // a dead link has ended the stream already
	}()
	finished := make(chan struct{})
	watched := make(chan struct{})
	go func() { // a write to a peer that reads nothing must not outlive the stream
		defer close(watched)
		select {
		case <-finished:
		case <-s.Done():
			if ended.Load() {
				_ = conn.SetWriteDeadline(time.Now().Add(flushLimit)) // a closed connection needs none
			} else {
				abort(conn)
			}
		}
	}()
	delivered, err := receiveConnected(s, conn)
	if err == nil {
		select {
		case <-outward:
		case <-s.Done():
		}
	}
	close(finished)
	if err == nil && delivered && ended.Load() {
		setLinger(conn, -1)
	}
	_ = conn.Close() // nothing is left to be told about it
	<-outward
	<-watched
}

func sendConnected(s *mux.Stream, conn net.Conn) error {
	buf := make([]byte, firstRead)
	offset := uint64(0)
	for {
		n, err := conn.Read(buf)
		if sendErr := s.SendData(0, offset, buf[:n]); sendErr != nil {
			return sendErr
		}
		offset += uint64(n)
		if n == len(buf) && n < frame.MaxData {
			buf = make([]byte, frame.MaxData)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// receiveConnected writes what the stream brings, up to the worker's END, and says whether the other side took it all.
// When it takes no more, the rest is dropped: it may still have something to say (a refusal of a large upload), and
// reading it tells when not.
func receiveConnected(s *mux.Stream, conn net.Conn) (delivered bool, err error) {
	delivered = true
	for {
		item, err := s.Recv()
		if err == io.EOF {
			if half, ok := conn.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite() // fails only on a connection that is gone, which reading it tells
			}
			return delivered, nil
		}
		if err != nil {
			return delivered, err
		}
		if item.Kind != frame.Data || item.Channel != 0 {
			s.Reset("bad_request", "only data on channel 0 may be sent here")
			return delivered, errors.New("not data")
		}
		if delivered {
			_, err := conn.Write(item.Payload)
			delivered = err == nil
		}
	}
}

// abort closes a connection so that the other side sees that it was broken off.
func abort(conn net.Conn) {
	setLinger(conn, 0)
	_ = conn.Close() // whatever was under way is lost by intent
}

// setLinger chooses how TCP ends when the connection is closed: 0 breaks it off, -1 hands over what was written.
func setLinger(conn net.Conn, seconds int) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(seconds) // fails only on a connection that is gone
	}
}
