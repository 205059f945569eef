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
			if !errors.Is(err, net.ErrClosed) { // out of descriptors: the worker must not think that it still listens
				s.Reset("resource_exhausted", err.Error())
			}
			return
		}
		go func() {
			defer func() { <-slots }()
			defer conn.Close()
			out, err := l.Open(map[string]any{"op": "port.accepted", "listener": s.ID(), "peer": conn.RemoteAddr().String()})
			if err == nil {
				joinConnected(out, conn)
			}
		}()
	}
}
