// Package ports serves the `net` link: connections between the worker and ports inside the sandbox, both ways. It runs
// in a helper process under the sandbox user's id, so that traffic never delays an exec. Its listening sockets are
// borrowed from PID 1 (Keeper).
package ports

import (
	"encoding/json"
	"io"
	"net"
	"sync"

	"sandlot.dev/agent/internal/mux"
)

// connectionLimit is how many accepted connections one sandbox has at once; more wait in the kernel's queue.
var connectionLimit = 1024

type server struct {
	link  *mux.Link
	loans *loans
	calls mux.Calls
	slots chan struct{} // one is taken for each accepted connection

	mu        sync.Mutex
	listeners map[string]*listener // by address; nil once the link has ended
}

// Serve serves a link whose handshake is over until it ends, or until the keeper hangs up, and says why it ended.
func Serve(conn io.ReadWriteCloser, keeper *net.UnixConn) error {
	v := &server{
		loans: newLoans(keeper), slots: make(chan struct{}, connectionLimit), listeners: map[string]*listener{},
	}
	v.link = mux.New(conn, mux.Agent, v.serve)
	go func() {
		v.loans.run()
		v.link.Close()
	}()
	err := v.link.Run()
	v.closeListeners() // at once: connections that come now are the next helper's
	v.calls.Finish(flushLimit)
	keeper.Close()
	return err
}

func (v *server) serve(s *mux.Stream) {
	if !v.calls.Enter() {
		return
	}
	defer v.calls.Leave()
	var q struct {
		Op string `json:"op"`
	}
	if err := json.Unmarshal(s.Request(), &q); err != nil {
		s.Reset("bad_request", "the request: "+err.Error())
		return
	}
	switch q.Op {
	case "port.listen":
		v.listen(s)
	case "port.connect":
		connect(s)
	default:
		s.Reset("unsupported", "no such operation on a net link: "+q.Op)
	}
}
