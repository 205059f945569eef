// Package link keeps the agent connected to its worker: it dials, proves itself, serves, and dials again, for ever.
package link

import (
	"crypto/hmac"
	crypto "crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"sandlot.dev/agent/internal/frame"
)

const (
	Major, Minor     = 1, 2 // 1.1: exec.start has merge; 1.2: ports have a link of their own
	handshakeTimeout = 10 * time.Second
	redialFirst      = 10 * time.Millisecond
	redialMax        = 2 * time.Second // a restarted worker has its agents back within this; hundreds that wait must cost little
	RoleCore         = "core"
	RoleFiles        = "files"
	RoleNet          = "net"
)

// Version is that of the package; a test compares them.
var Version = "0.3.0"

// Setup is what the worker decides once, at first contact.
type Setup struct {
	UID         uint32 `json:"uid"`
	GID         uint32 `json:"gid"`
	User        string `json:"user"`
	Home        string `json:"home"`
	Workspace   string `json:"workspace"`
	MemoryBytes int64  `json:"memory_bytes"`
	RunDir      string `json:"run_dir"`
}

type hello struct {
	Protocol [2]int `json:"protocol"`
	Agent    string `json:"agent"`
	Role     string `json:"role"`
	Boot     string `json:"boot"`
	Nonce    string `json:"nonce"`
	Known    bool   `json:"known"`
}

type welcome struct {
	Protocol [2]int `json:"protocol"`
	Epoch    uint64 `json:"epoch"`
	Nonce    string `json:"nonce"`
	Secret   string `json:"secret"`
	Proof    string `json:"proof"`
	Setup    *Setup `json:"setup"`
}

type ready struct {
	Proof string `json:"proof"`
}

// Dialer holds what the agent knows of its worker.
type Dialer struct {
	Socket string
	Boot   string

	mu     sync.Mutex
	secret []byte
	epoch  uint64
	setup  *Setup
}

func NewDialer(socket string) *Dialer {
	return &Dialer{Socket: socket, Boot: hex.EncodeToString(random(16))}
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = crypto.Read(b) // never fails: the program ends if the kernel has no randomness
	return b
}

// Dial connects and shakes hands in the given role. Nothing follows on the connection before both sides are ready,
// so the reads below take exactly the handshake's frames and the connection can be handed on.
func (d *Dialer) Dial(role string) (*net.UnixConn, *Setup, error) {
	raw, err := net.DialTimeout("unix", d.Socket, handshakeTimeout)
	if err != nil {
		return nil, nil, err
	}
	conn := raw.(*net.UnixConn)
	setup, err := d.shake(conn, role)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, setup, nil
}

func (d *Dialer) shake(conn net.Conn, role string) (*Setup, error) {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, err
	}
	d.mu.Lock()
	secret, epoch := d.secret, d.epoch
	d.mu.Unlock()
	nonce := random(32)
	err := send(conn, frame.Hello, hello{[2]int{Major, Minor}, Version, role, d.Boot, hex.EncodeToString(nonce), secret != nil})
	if err != nil {
		return nil, err
	}
	f, err := frame.Read(conn)
	if err != nil {
		return nil, err
	}
	if f.Kind != frame.Welcome {
		return nil, fmt.Errorf("refused: %.200s", f.Payload)
	}
	var w welcome
	if err := json.Unmarshal(f.Payload, &w); err != nil {
		return nil, err
	}
	if w.Protocol[0] != Major {
		return nil, fmt.Errorf("worker speaks protocol %d", w.Protocol[0])
	}
	if w.Epoch < epoch {
		return nil, fmt.Errorf("worker of epoch %d, have seen %d", w.Epoch, epoch)
	}
	theirs, err := hex.DecodeString(w.Nonce)
	if err != nil || len(theirs) != 32 {
		return nil, errors.New("bad nonce")
	}
	first := secret == nil
	if first {
		if secret, err = hex.DecodeString(w.Secret); err != nil || len(secret) != 32 || w.Setup == nil {
			return nil, errors.New("first contact without a secret and a setup")
		}
	} else {
		proof, err := hex.DecodeString(w.Proof)
		if err != nil || !hmac.Equal(proof, prove(secret, "worker", nonce, w.Epoch, role)) {
			return nil, errors.New("the worker did not prove the secret")
		}
	}
	mine := prove(secret, "agent", theirs, w.Epoch, role)
	if err := send(conn, frame.Ready, ready{hex.EncodeToString(mine)}); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if first {
		d.secret, d.setup = secret, w.Setup
	}
	d.epoch = max(d.epoch, w.Epoch)
	return d.setup, conn.SetDeadline(time.Time{})
}

func prove(secret []byte, who string, nonce []byte, epoch uint64, role string) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(who))
	h.Write(nonce)
	h.Write(binary.BigEndian.AppendUint64(nil, epoch))
	h.Write([]byte(role))
	return h.Sum(nil)
}

func send(conn net.Conn, kind frame.Kind, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = conn.Write(frame.Append(nil, 0, kind, raw, nil))
	return err
}

// Forever serves one core link after another.
func (d *Dialer) Forever(serve func(*net.UnixConn, *Setup)) {
	wait := redialFirst
	for {
		began := time.Now()
		if conn, setup, err := d.Dial(RoleCore); err == nil {
			serve(conn, setup)
			// A worker that hangs up right after the handshake (it does not take our proof) is not dialled faster for that.
			if time.Since(began) > redialMax {
				wait = redialFirst
			}
		}
		// Some earlier, some later: agents that lost the same worker do not all dial at once.
		time.Sleep(wait*3/4 + rand.N(wait/4))
		wait = min(wait*3/2, redialMax)
	}
}
