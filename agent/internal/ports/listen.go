package ports

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"sandlot.dev/agent/internal/mux"
)

const acceptPause = 100 * time.Millisecond // before another try when descriptors or memory have run out

// listener is a borrowed socket and the worker's stream that gets its connections now.
type listener struct {
	net.Listener
	address string
	stream  *mux.Stream // guarded by server.mu
}

// loopback reads an address on which a sandbox may listen: its own loopback with a port, where 0 means any.
func loopback(address string) (netip.AddrPort, error) {
	if port, ok := strings.CutPrefix(address, "localhost:"); ok {
		address = "127.0.0.1:" + port
	}
	parsed, err := netip.ParseAddrPort(address)
	if err != nil || parsed.Addr().Zone() != "" || parsed.Addr().Is4In6() || !parsed.Addr().IsLoopback() {
		return netip.AddrPort{}, errors.New("address: a loopback address with a port")
	}
	return parsed, nil
}

// listen serves port.listen. If the sandbox listens on the address already, the request takes the listener over. END or
// RESET closes the listener; the end of the link does not.
func (v *server) listen(s *mux.Stream) {
	var q struct {
		Address string `json:"address"`
	}
	err := json.Unmarshal(s.Request(), &q)
	var address netip.AddrPort
	if err == nil {
		address, err = loopback(q.Address)
	}
	if err != nil {
		s.Reset("bad_request", err.Error())
		return
	}
	l, err := v.take(address.String(), s)
	if err != nil {
		var refused *mux.ResetError
		if errors.As(err, &refused) {
			s.Reset(refused.Code, refused.Message)
		} else {
			s.Reset("internal", err.Error())
		}
		return
	}
	err = s.SendMessage(map[string]string{"address": l.address})
	for err == nil {
		_, err = s.Recv()
	}
	if errors.Is(err, mux.ErrClosed) {
		return
	}
	v.release(l, s)
	s.Finish()
}

// take makes a stream the one that gets an address's connections.
func (v *server) take(address string, s *mux.Stream) (*listener, error) {
	var former *mux.Stream
	defer func() {
		if former != nil {
			former.Reset("conflict", "another listener has taken this address over")
		}
	}()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.listeners == nil {
		return nil, mux.ErrClosed
	}
	if l := v.listeners[address]; l != nil {
		former, l.stream = l.stream, s
		return l, nil
	}
	borrowed, err := v.loans.listen(address)
	if err != nil {
		return nil, err
	}
	l := &listener{Listener: borrowed, address: borrowed.Addr().String(), stream: s}
	v.listeners[l.address] = l
	go v.accept(l)
	return l, nil
}

// release closes a listener, unless another stream has taken it over.
func (v *server) release(l *listener, s *mux.Stream) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.listeners == nil || l.stream != s {
		return
	}
	delete(v.listeners, l.address)
	_ = l.Close() // a copy; the keeper has the socket
	v.loans.forget(l.address)
}

func (v *server) streamOf(l *listener) *mux.Stream {
	v.mu.Lock()
	defer v.mu.Unlock()
	return l.stream
}

func (v *server) closeListeners() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, l := range v.listeners {
		_ = l.Close() // as above
	}
	v.listeners = nil
}

func (v *server) accept(l *listener) {
	for {
		select {
		case v.slots <- struct{}{}:
		case <-v.link.Done():
			return
		}
		conn, err := l.Accept()
		if err == nil {
			go v.accepted(l, conn)
			continue
		}
		<-v.slots
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if !exhausted(err) { // the worker must not think that it still listens
			v.streamOf(l).Reset("internal", err.Error())
			return
		}
		time.Sleep(acceptPause)
	}
}

func exhausted(err error) bool {
	for _, each := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, each) {
			return true
		}
	}
	return false
}

func (v *server) accepted(l *listener, conn net.Conn) {
	defer func() { <-v.slots }()
	if !v.calls.Enter() {
		abort(conn)
		return
	}
	defer v.calls.Leave()
	s, err := v.link.Open(map[string]any{
		"op": "port.accepted", "listener": v.streamOf(l).ID(), "peer": conn.RemoteAddr().String(),
	})
	if err != nil {
		abort(conn)
		return
	}
	joinConnected(s, conn)
}
