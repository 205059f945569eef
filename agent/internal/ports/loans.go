package ports

import (
	"encoding/json"
	"net"
	"os"
	"sync"
	"syscall"

	"sandlot.dev/agent/internal/mux"
)

// errRevoked: the worker may ask again, on the link of the helper that has the listeners now.
var errRevoked = &mux.ResetError{Code: "interrupted", Message: "another helper has the listeners now"}

// loans is the helper's side of the Keeper: it borrows listening sockets.
type loans struct {
	keeper  *net.UnixConn
	asking  sync.Mutex // one question at a time
	answers chan loan
}

type loan struct {
	answered
	listener net.Listener
}

func newLoans(keeper *net.UnixConn) *loans {
	return &loans{keeper: keeper, answers: make(chan loan)}
}

// run returns when the keeper has hung up: another helper serves the sandbox now.
func (b *loans) run() {
	defer close(b.answers)
	defer b.keeper.Close()
	buf, rights := make([]byte, maxAsked), make([]byte, syscall.CmsgSpace(4))
	for {
		n, m, _, _, err := b.keeper.ReadMsgUnix(buf, rights)
		if err != nil || n == 0 {
			return
		}
		var got loan
		if err := json.Unmarshal(buf[:n], &got.answered); err != nil {
			return
		}
		if m > 0 {
			if got.listener, err = received(rights[:m]); err != nil {
				return
			}
		}
		b.answers <- got
	}
}

func received(rights []byte) (net.Listener, error) {
	messages, err := syscall.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	sockets, err := syscall.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(sockets[0]), "listener")
	defer file.Close()
	return net.FileListener(file)
}

// listen borrows the socket that listens on an address.
func (b *loans) listen(address string) (net.Listener, error) {
	got, err := b.ask(asked{Address: address})
	if err == nil && got.listener == nil {
		err = &mux.ResetError{Code: got.Code, Message: got.Message}
	}
	return got.listener, err
}

// forget lets the keeper close the socket for good.
func (b *loans) forget(address string) {
	_, _ = b.ask(asked{Address: address, Close: true}) // a keeper that is gone has another helper, which decides
}

func (b *loans) ask(q asked) (loan, error) {
	raw, err := json.Marshal(q)
	if err != nil {
		return loan{}, err
	}
	b.asking.Lock()
	defer b.asking.Unlock()
	if _, err := b.keeper.Write(raw); err != nil {
		return loan{}, errRevoked
	}
	got, ok := <-b.answers
	if !ok {
		return loan{}, errRevoked
	}
	return got, nil
}
