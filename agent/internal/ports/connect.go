package ports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sandlot.dev/agent/internal/mux"
)

const (
	dialLimit    = 10 * time.Second       // to connect, with all attempts
	firstAttempt = 100 * time.Millisecond // to connect, before the next attempt, which may take twice as long
	longAttempt  = time.Second
	maxUnixPath  = 107 // bytes, as the kernel has it
)

// connect serves port.connect: it dials a port or socket inside and joins it to the stream. It runs under the sandbox
// user's id, who decides by that what it can reach; loopback is all that TCP is for here.
func connect(s *mux.Stream) {
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
		s.Reset(dialCode(err), dialText(q.Address, err))
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
	for _, address := range addresses {
		conn, err := dialPatiently(ctx, network, address)
		if err == nil {
			return conn, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// dialPatiently dials again and again a listener whose queue is full. The kernel would do so too, but only after 1, 3
// and 7 seconds, and the queue of a simple server, five connections long, is full in every burst.
func dialPatiently(ctx context.Context, network, address string) (net.Conn, error) {
	for attempt := firstAttempt; ; attempt = min(2*attempt, longAttempt) {
		dialer := net.Dialer{Timeout: attempt}
		conn, err := dialer.DialContext(ctx, network, address)
		if err == nil || ctx.Err() != nil || !timedOut(err) {
			return conn, err
		}
	}
}

func timedOut(err error) bool {
	var failed net.Error
	return errors.As(err, &failed) && failed.Timeout()
}

func dialCode(err error) string {
	switch {
	case errors.Is(err, syscall.ENOENT):
		return "not_found"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return "permission_denied"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOMEM):
		return "resource_exhausted"
	case timedOut(err):
		return "busy" // something listens, but it accepts nothing
	}
	return "refused"
}

func dialText(address string, err error) string {
	if timedOut(err) {
		return fmt.Sprintf("what listens on %s accepted no connection within %v", address, dialLimit)
	}
	return err.Error()
}
