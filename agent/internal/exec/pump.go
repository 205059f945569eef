package exec

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"
)

const (
	pumpBytes = 32 << 10
	// What a pipe can hold at most (pipe-max-size): all that was written before the command's end is within it, and a
	// child that never stops printing cannot keep the exec from ending.
	maxPipeBytes = 1 << 20
)

// pump carries one of a command's outputs to the ring. It lets the exec end when the command has ended, though a child
// in the background may hold the pipe: everything written before the end is in the pipe by then and is taken; what
// comes later is read and dropped, so that the child does not die of a closed pipe.
type pump struct {
	file    *os.File
	channel byte
	done    chan struct{} // closed when everything up to the command's end is in the ring
	ended   chan struct{} // closed when the command has ended
}

func startPump(file *os.File, channel byte, sink func(byte, []byte), linger func(io.Closer) (release func())) *pump {
	p := &pump{file: file, channel: channel, done: make(chan struct{}), ended: make(chan struct{})}
	go p.run(sink, linger)
	return p
}

// ending tells the pump that the command has ended. Once.
func (p *pump) ending() {
	close(p.ended)
	_ = p.file.SetReadDeadline(time.Unix(1, 0)) // wakes the read; a closed file needs no waking
}

func (p *pump) run(sink func(byte, []byte), linger func(io.Closer) func()) {
	defer p.file.Close()
	buf := make([]byte, pumpBytes)
	for {
		n, err := p.file.Read(buf)
		if n > 0 {
			sink(p.channel, buf[:n])
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil { // the last writer is gone; a terminal says EIO
			close(p.done)
			// A terminal that is closed under a command which is only just ending would end it with SIGHUP.
			<-p.ended
			return
		}
	}
	_ = p.file.SetReadDeadline(time.Time{}) // cannot fail where setting it did not
	open := p.takeWhatIsThere(buf, sink)
	close(p.done)
	if !open {
		return
	}
	release := linger(p.file)
	defer release()
	discard(p.file)
}

// takeWhatIsThere reads without waiting and says whether there may be more to come.
func (p *pump) takeWhatIsThere(buf []byte, sink func(byte, []byte)) (open bool) {
	conn, err := p.file.SyscallConn()
	if err != nil {
		return false
	}
	for taken := 0; taken < maxPipeBytes; {
		var n int
		var rerr error
		if err := conn.Read(func(fd uintptr) bool {
			n, rerr = syscall.Read(int(fd), buf)
			return true
		}); err != nil {
			return false
		}
		switch {
		case n > 0:
			sink(p.channel, buf[:n])
			taken += n
		case rerr == syscall.EINTR:
		case rerr == syscall.EAGAIN:
			return true
		default:
			return false
		}
	}
	return true
}

// discard reads until the last writer is gone.
func discard(f *os.File) {
	buf := make([]byte, 4096)
	for {
		if _, err := f.Read(buf); err != nil {
			return
		}
	}
}
