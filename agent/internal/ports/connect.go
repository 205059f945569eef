package ports

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"sandlot.dev/agent/internal/frame"
	"sandlot.dev/agent/internal/mux"
)

const (
	dialLimit   = 10 * time.Second // to connect
	flushLimit  = 10 * time.Second // to hand over what is left when both sides of the stream have ended
	maxUnixPath = 107              // bytes, as the kernel has it
)

// Connect serves port.connect: it dials a port or socket inside and joins it to the stream. It runs under the sandbox
// user's id, who decides by that what it can reach; loopback is all that TCP is for here.
func Connect(s *mux.Stream) {
	var q struct {
		Network string `json:"network"`
		Address string `json:"address"`
	}
	if err := json.Unmarshal(s.Request(), &q); err != nil {
		s.Reset("bad_request", "the request: "+err.Error())
		return
	}
	addresses, err := dialable(q.Network, q.Address)
	if err != nil {
		s.Reset("bad_request", err.Error())
		return
	}
	conn, err := dialAny(s, q.Network, addresses)
	if err != nil {
		s.Reset(dialCode(err), err.Error())
		return
	}
	defer conn.Close()
	if err := s.SendMessage(map[string]any{"connected": true}); err != nil {
		s.Reset("internal", err.Error())
		return
	}
	joinConnected(s, conn)
}

// dialable says what to dial for an address: only loopback, by number or as "localhost", or a socket's path.
func dialable(network, address string) ([]string, error) {
	switch network {
	case "unix":
		if !strings.HasPrefix(address, "/") || len(address) > maxUnixPath || strings.IndexByte(address, 0) >= 0 {
			return nil, errors.New("the address of a unix socket is an absolute path of at most 107 bytes")
		}
		return []string{address}, nil
	case "tcp":
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, errors.New("the port must be 1 to 65535")
		}
		if host == "localhost" {
			return []string{net.JoinHostPort("127.0.0.1", port), net.JoinHostPort("::1", port)}, nil
		}
		ip, err := netip.ParseAddr(host)
		if err != nil || ip.Zone() != "" || ip.Is4In6() || !ip.IsLoopback() {
			return nil, errors.New("only loopback addresses can be connected to")
		}
		return []string{net.JoinHostPort(ip.String(), port)}, nil
	}
	return nil, errors.New(`network must be "tcp" or "unix"`)
}

// dialAny dials addresses in turn; the first error tells. It gives up when the stream is over.
func dialAny(s *mux.Stream, network string, addresses []string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	go func() {
		select {
		case <-s.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	var first error
	var dialer net.Dialer
	for _, address := range addresses {
		conn, err := dialer.DialContext(ctx, network, address)
		if err == nil {
			return conn, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

func dialCode(err error) string {
	switch {
	case errors.Is(err, syscall.ENOENT):
		return "not_found"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return "permission_denied"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOMEM):
		return "resource_exhausted"
	}
	return "refused" // nobody listens, or nobody accepted in time
}

// joinConnected copies both ways until both sides have ended, or either broke off. END and shutdown stand for each
// other, and so do RESET and an aborted connection.
func joinConnected(s *mux.Stream, conn net.Conn) {
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
	err := receiveConnected(s, conn)
	if err == nil {
		select {
		case <-outward:
		case <-s.Done():
		}
	}
	close(finished)
	if err != nil || !ended.Load() {
		abort(conn)
	}
	_ = conn.Close() // nothing is left to be told about it
	<-outward
	<-watched
}

func sendConnected(s *mux.Stream, conn net.Conn) error {
	buf := make([]byte, frame.MaxData)
	offset := uint64(0)
	for {
		n, err := conn.Read(buf)
		if sendErr := s.SendData(0, offset, buf[:n]); sendErr != nil {
			return sendErr
		}
		offset += uint64(n)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// receiveConnected writes what the stream brings; nil after the worker's END. When the other side takes no more, the
// rest is dropped: it may still have something to say (a refusal of a large upload), and reading it tells when not.
func receiveConnected(s *mux.Stream, conn net.Conn) error {
	deaf := false
	for {
		item, err := s.Recv()
		if err == io.EOF {
			if half, ok := conn.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite() // fails only on a connection that is gone, which reading it tells
			}
			return nil
		}
		if err != nil {
			return err
		}
		if item.Kind != frame.Data || item.Channel != 0 {
			s.Reset("bad_request", "only data on channel 0 may be sent here")
			return errors.New("not data")
		}
		if !deaf {
			_, err := conn.Write(item.Payload)
			deaf = err != nil
		}
	}
}

// abort closes a connection so that the other side sees that it was broken off.
func abort(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // only makes the end more telling
	}
	_ = conn.Close() // whatever was under way is lost by intent
}
