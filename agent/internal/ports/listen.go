// Package ports carries connections between the worker and ports inside the sandbox, both ways.
package ports

import (
	"encoding/json"
	"errors"
	"io"
	"net"

	"sandlot.dev/agent/internal/mux"
)

const maxConnections = 1024 // of one listener at once

// Loopback says whether an address names this sandbox's own loopback and nothing else.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// ServeListen listens inside and opens a stream to the worker for each connection; the request's stream is its life.
func ServeListen(l *mux.Link, s *mux.Stream) error {
	var q struct {
		Address string `json:"address"`
	}
	if err := json.Unmarshal(s.Request(), &q); err != nil || !Loopback(q.Address) {
		s.Reset("bad_request", "address: a loopback address with a port")
		return nil
	}
	ln, err := net.Listen("tcp", q.Address)
	if err != nil {
		s.Reset("refused", err.Error())
		return nil
	}
	defer ln.Close()
	if err := s.SendMessage(map[string]string{"address": ln.Addr().String()}); err != nil {
		return nil
	}
	go accept(l, s, ln)
	for {
		if _, err := s.Recv(); err != nil {
			if errors.Is(err, io.EOF) {
				ln.Close()
				s.Finish()
			}
			return nil
		}
	}
}

func accept(l *mux.Link, s *mux.Stream, ln net.Listener) {
	slots := make(chan struct{}, maxConnections)
	for {
		slots <- struct{}{}
		conn, err := ln.Accept()
		if err != nil {
			return // closed, or out of descriptors: the worker sees the listener's stream end
		}
		go func() {
			defer func() { <-slots }()
			defer conn.Close()
			out, err := l.Open(map[string]any{"op": "port.accepted", "listener": s.ID(), "peer": conn.RemoteAddr().String()})
			if err == nil {
				Copy(out, conn)
			}
		}()
	}
}

// halfCloser is a connection whose writing side can be closed alone.
type halfCloser interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// Copy carries bytes both ways until both sides have ended.
func Copy(s *mux.Stream, conn io.ReadWriteCloser) {
	inward := make(chan struct{})
	go func() {
		defer close(inward)
		for {
			item, err := s.Recv()
			if errors.Is(err, io.EOF) {
				if half, ok := conn.(halfCloser); ok {
					_ = half.CloseWrite() // a peer that has gone needs no telling
				}
				return
			}
			if err != nil {
				conn.Close() // reset: the other direction ends too
				return
			}
			if _, err := conn.Write(item.Payload); err != nil {
				s.Reset("gone", "the connection inside broke")
				return
			}
		}
	}()
	buf := make([]byte, 32<<10)
	var offset uint64
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if s.SendData(0, offset, buf[:n]) != nil {
				break
			}
			offset += uint64(n)
		}
		if err != nil {
			_ = s.End() // a dead link has ended the stream already
			break
		}
	}
	<-inward
}
