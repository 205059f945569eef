package link

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"sandlot.dev/agent/internal/frame"
)

// worker answers one handshake after another, each as the test says.
type worker struct {
	t      *testing.T
	ln     net.Listener
	secret []byte
	epoch  uint64
	major  int
	setup  *Setup // sent with the secret if set; otherwise a proof is
}

func newWorker(t *testing.T) (*worker, *Dialer) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return &worker{t: t, ln: ln, secret: bytes.Repeat([]byte{7}, 32), epoch: 5, major: Major, setup: &Setup{UID: 1000}}, NewDialer(path)
}

// shake takes one connection; proven says whether the agent's proof came and is right.
func (w *worker) shake(role string) (said hello, proven bool) {
	conn, err := w.ln.Accept()
	if err != nil {
		return said, false
	}
	defer conn.Close()
	f, err := frame.Read(conn)
	if err != nil || f.Kind != frame.Hello || json.Unmarshal(f.Payload, &said) != nil {
		w.t.Errorf("hello: %v %+v", err, f)
		return said, false
	}
	nonce, _ := hex.DecodeString(said.Nonce) // a bad one fails the proof
	mine := random(32)
	answer := welcome{Protocol: [2]int{w.major, 9}, Epoch: w.epoch, Nonce: hex.EncodeToString(mine), Setup: w.setup}
	if w.setup != nil {
		answer.Secret = hex.EncodeToString(w.secret)
	} else {
		answer.Proof = hex.EncodeToString(prove(w.secret, "worker", nonce, w.epoch, role))
	}
	if err := send(conn, frame.Welcome, answer); err != nil {
		return said, false
	}
	if f, err = frame.Read(conn); err != nil {
		return said, false
	}
	var r ready
	if f.Kind != frame.Ready || json.Unmarshal(f.Payload, &r) != nil {
		w.t.Errorf("ready: %+v", f)
	}
	return said, r.Proof == hex.EncodeToString(prove(w.secret, "agent", mine, w.epoch, role))
}

func (w *worker) meet(d *Dialer, role string) (said hello, proven bool, setup *Setup, err error) {
	done := make(chan struct{})
	go func() { defer close(done); said, proven = w.shake(role) }()
	conn, setup, err := d.Dial(role)
	if err == nil {
		conn.Close()
	}
	<-done
	return said, proven, setup, err
}

func TestFirstAndLaterContact(t *testing.T) {
	w, d := newWorker(t)
	said, proven, setup, err := w.meet(d, RoleCore)
	if err != nil || !proven || said.Known || said.Role != RoleCore || said.Boot != d.Boot || setup.UID != 1000 {
		t.Fatalf("%+v %v %+v %v", said, proven, setup, err)
	}
	w.setup = nil
	again, proven, setup, err := w.meet(d, RoleFiles)
	if err != nil || !proven || !again.Known || again.Boot != said.Boot || again.Nonce == said.Nonce || setup.UID != 1000 {
		t.Fatalf("%+v %v %+v %v", again, proven, setup, err)
	}
}

func TestWhatTheAgentRefuses(t *testing.T) {
	w, d := newWorker(t)
	refuses := func(why string) {
		t.Helper()
		if _, proven, _, err := w.meet(d, RoleCore); err == nil || proven {
			t.Fatalf("%s: %v %v", why, proven, err)
		}
	}
	w.major = Major + 1
	refuses("another major")
	w.major = Major
	right := w.secret
	w.secret = right[:5]
	refuses("a short secret")
	w.secret = right
	if _, _, _, err := w.meet(d, RoleCore); err != nil {
		t.Fatal(err)
	}
	refuses("no proof, but a secret and a setup again")
	w.setup, w.secret = nil, bytes.Repeat([]byte{8}, 32)
	refuses("the proof of another secret")
	w.secret = right
	w.epoch = 4
	refuses("a lower epoch")
	w.epoch = 6
	if _, proven, _, err := w.meet(d, RoleCore); err != nil || !proven {
		t.Fatal(proven, err)
	}
	w.epoch = 5
	refuses("an epoch that was fine before")
}

// A worker that hangs up after each handshake is dialled ever more slowly, not in a tight loop.
func TestRedialSlowsDown(t *testing.T) {
	w, d := newWorker(t)
	var served atomic.Int32
	go d.Forever(func(conn *net.UnixConn, _ *Setup) { served.Add(1); conn.Close() })
	w.shake(RoleCore)
	w.setup = nil
	stop := time.AfterFunc(300*time.Millisecond, func() { w.ln.Close() })
	defer stop.Stop()
	for {
		if said, _ := w.shake(RoleCore); said.Nonce == "" {
			break
		}
	}
	if n := served.Load(); n < 2 || n > 20 {
		t.Fatalf("served %d times", n)
	}
}
