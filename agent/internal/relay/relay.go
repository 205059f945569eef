// Package relay carries an agent's connections to a worker that is on another machine, over the standard input and output
// of one process. Each line is a piece of one connection, in base64, because what starts the process may pass text alone.
package relay

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	Opened byte = 1 // a connection was made; from the relay alone
	Data   byte = 2
	Closed byte = 3
	Alive  byte = 4 // from the worker alone: it is there
	Gone   byte = 5 // from the relay alone: the agent has ended, and with it every exec

	headBytes  = 5
	pieceBytes = 48 << 10
	maxLine    = 128 << 10
	maxPeers   = 16
	// A worker says every 10 s that it is there. A relay without one must go: its connections look open to the agent.
	Patience = 45 * time.Second
	// The next relay takes the socket's place, and this one notices.
	lookPause = 200 * time.Millisecond
)

var (
	errReplaced = errors.New("another relay has taken over")
	errGone     = errors.New("the agent has ended")
)

type relay struct {
	mu    sync.Mutex
	out   io.Writer // in the lock: lines of two connections must not mix
	peers map[uint32]*net.UnixConn
	next  uint32
	ended chan error
}

// Hold marks a running agent: the kernel lets go of the file when the process ends. The name appears with the lock on it.
func Hold(name string) (*os.File, error) {
	fresh := name + ".new"
	file, err := os.OpenFile(fresh, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
		err = os.Rename(fresh, name)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// ended says whether an agent has held the file and does no more.
func ended(name string) bool {
	file, err := os.Open(name)
	if err != nil {
		return false // none has started yet
	}
	defer file.Close()
	return syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil
}

// Serve listens at the path, in place of any earlier relay, and carries connections until one side is gone. An agent holds
// the file held.
func Serve(path, held string, in io.Reader, out io.Writer, patience time.Duration) error {
	listener, mine, err := listen(path)
	if err != nil {
		return err
	}
	defer listener.Close()
	r := &relay{out: out, peers: map[uint32]*net.UnixConn{}, ended: make(chan error, 1)}
	go r.accept(listener)
	go r.read(in, patience)
	go r.watch(path, held, mine)
	err = <-r.ended
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.peers {
		conn.Close()
	}
	return err
}

// listen makes the socket beside its place and moves it there: the agent finds the old one or the new one.
func listen(path string) (*net.UnixListener, os.FileInfo, error) {
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	_ = os.Remove(fresh) // of a process that had this number before
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	listener.SetUnlinkOnClose(false)
	mine, err := os.Lstat(fresh)
	if err == nil {
		err = os.Chmod(fresh, 0o600)
	}
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		listener.Close()
		return nil, nil, err
	}
	return listener, mine, nil
}

// end is what ends the relay; only the first reason counts.
func (r *relay) end(err error) {
	select {
	case r.ended <- err:
	default:
	}
}

func (r *relay) watch(path, held string, mine os.FileInfo) {
	for {
		time.Sleep(lookPause)
		if ended(held) {
			r.send(0, Gone, nil)
			r.end(errGone)
			return
		}
		if now, err := os.Lstat(path); err != nil || !os.SameFile(mine, now) {
			r.end(errReplaced)
			return
		}
	}
}

func (r *relay) accept(listener *net.UnixListener) {
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			r.end(err)
			return
		}
		r.mu.Lock()
		if len(r.peers) >= maxPeers {
			r.mu.Unlock()
			conn.Close()
			continue
		}
		r.next++
		number := r.next
		r.peers[number] = conn
		r.mu.Unlock()
		go r.carry(number, conn)
	}
}

// carry sends what comes from the agent.
func (r *relay) carry(number uint32, conn *net.UnixConn) {
	r.send(number, Opened, nil)
	buf := make([]byte, pieceBytes)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			r.send(number, Data, buf[:n])
		}
		if err != nil {
			break
		}
	}
	if r.drop(number) {
		r.send(number, Closed, nil)
	}
}

// drop says whether the connection was still there.
func (r *relay) drop(number uint32) bool {
	r.mu.Lock()
	conn := r.peers[number]
	delete(r.peers, number)
	r.mu.Unlock()
	if conn == nil {
		return false
	}
	conn.Close()
	return true
}

func (r *relay) send(number uint32, kind byte, data []byte) {
	line := Line(number, kind, data)
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.out.Write(line); err != nil {
		r.end(err)
	}
}

// Line is one piece, as it is sent.
func Line(number uint32, kind byte, data []byte) []byte {
	piece := binary.BigEndian.AppendUint32(make([]byte, 0, headBytes+len(data)), number)
	piece = append(append(piece, kind), data...)
	line := make([]byte, base64.StdEncoding.EncodedLen(len(piece))+1)
	base64.StdEncoding.Encode(line, piece)
	line[len(line)-1] = '\n'
	return line
}

// read delivers what comes from the worker.
func (r *relay) read(in io.Reader, patience time.Duration) {
	silent := time.AfterFunc(patience, func() { r.end(errors.New("the worker is silent")) })
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, maxLine), maxLine)
	for lines.Scan() {
		silent.Reset(patience)
		if err := r.deliver(lines.Bytes()); err != nil {
			r.end(err)
			return
		}
	}
	if err := lines.Err(); err != nil {
		r.end(err)
		return
	}
	r.end(io.EOF)
}

func (r *relay) deliver(line []byte) error {
	piece := make([]byte, base64.StdEncoding.DecodedLen(len(line)))
	n, err := base64.StdEncoding.Decode(piece, line)
	if err != nil || n < headBytes {
		return fmt.Errorf("not a piece of a connection: %.40q", line)
	}
	number, kind, data := binary.BigEndian.Uint32(piece), piece[4], piece[headBytes:n]
	switch kind {
	case Alive:
	case Closed:
		r.drop(number)
	case Data:
		r.mu.Lock()
		conn := r.peers[number]
		r.mu.Unlock()
		if conn == nil {
			return nil // it has ended meanwhile
		}
		if _, err := conn.Write(data); err != nil && r.drop(number) {
			r.send(number, Closed, nil)
		}
	default:
		return fmt.Errorf("unknown kind %d", kind)
	}
	return nil
}
