package ports

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
)

const (
	maxListeners = 64   // of one sandbox
	maxAsked     = 1024 // bytes of one message between helper and keeper
)

// asked is what a helper wants: the socket that listens on an address, or that it be closed.
type asked struct {
	Address string `json:"address"`
	Close   bool   `json:"close,omitempty"`
}

// answered carries the bound address and, beside it, the socket; or why there is none.
type answered struct {
	Address string `json:"address,omitempty"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// Keeper is PID 1's part of listening. It keeps the sandbox's listening sockets and lends them to the helper that
// serves the net link. So a listener outlives the helper, its link and the worker, and connections wait in it meanwhile.
type Keeper struct {
	mu      sync.Mutex
	sockets map[string]int // by address; bare descriptors, so that connections do not wake this process
	helper  *net.UnixConn
}

func NewKeeper() *Keeper { return &Keeper{sockets: map[string]int{}} }

// Lend returns the end by which a new helper asks for sockets. The former helper loses its own, and ends.
func (k *Keeper) Lend() (*os.File, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	mine, theirs := os.NewFile(uintptr(pair[0]), "keeper"), os.NewFile(uintptr(pair[1]), "helper")
	conn, err := unixConn(mine)
	if err != nil {
		theirs.Close()
		return nil, err
	}
	k.mu.Lock()
	former := k.helper
	k.helper = conn
	k.mu.Unlock()
	if former != nil {
		former.Close()
	}
	go k.serve(conn)
	return theirs, nil
}

// unixConn makes a connection of a file, which it closes.
func unixConn(file *os.File) (*net.UnixConn, error) {
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, errors.New("not a unix socket")
	}
	return unix, nil
}

func (k *Keeper) serve(conn *net.UnixConn) {
	defer conn.Close()
	buf := make([]byte, maxAsked)
	for {
		n, err := conn.Read(buf) // the kernel drops descriptors that come with it
		if err != nil {
			return
		}
		answer, socket := k.answer(buf[:n])
		raw, err := json.Marshal(answer)
		if err != nil {
			return
		}
		var rights []byte
		if socket >= 0 {
			rights = syscall.UnixRights(socket)
		}
		_, _, err = conn.WriteMsgUnix(raw, rights, nil)
		if socket >= 0 {
			_ = syscall.Close(socket) // a copy
		}
		if err != nil {
			return
		}
	}
}

// answer returns a copy of the socket, or -1. User code may have taken over the helper that asks.
func (k *Keeper) answer(raw []byte) (answered, int) {
	var q asked
	if err := json.Unmarshal(raw, &q); err != nil {
		return answered{Code: "bad_request", Message: err.Error()}, -1
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if q.Close {
		if socket, kept := k.sockets[q.Address]; kept {
			delete(k.sockets, q.Address)
			_ = syscall.Close(socket) // nothing is left to be told about it
		}
		return answered{}, -1
	}
	address, err := loopback(q.Address)
	if err != nil {
		return answered{Code: "bad_request", Message: err.Error()}, -1
	}
	bound := address.String()
	socket, kept := k.sockets[bound]
	if !kept {
		if len(k.sockets) >= maxListeners {
			return answered{Code: "resource_exhausted", Message: "too many listeners in this sandbox"}, -1
		}
		if socket, bound, err = bind(bound); err != nil {
			return answered{Code: listenCode(err), Message: err.Error()}, -1
		}
		k.sockets[bound] = socket
	}
	copied, err := duplicate(socket)
	if err != nil {
		return answered{Code: "resource_exhausted", Message: err.Error()}, -1
	}
	return answered{Address: bound}, copied
}

func listenCode(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "conflict"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return "permission_denied"
	case errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EAFNOSUPPORT):
		return "bad_request" // no IPv6 here, say
	}
	return "resource_exhausted"
}

func bind(address string) (socket int, bound string, err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return -1, "", err
	}
	defer listener.Close()
	raw, err := listener.(*net.TCPListener).SyscallConn()
	if err != nil {
		return -1, "", err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { socket, failed = duplicate(int(fd)) }); err != nil {
		return -1, "", err
	}
	return socket, listener.Addr().String(), failed
}

func duplicate(fd int) (int, error) {
	copied, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(copied), nil
}
