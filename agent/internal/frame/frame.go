// Package frame is the codec of the agent protocol's frames (docs/reference/agent-protocol.md).
// It knows sizes and kinds, nothing of what they mean.
package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

type Kind uint8

const (
	Open    Kind = 1
	Part    Kind = 2
	Message Kind = 3
	Data    Kind = 4
	Credit  Kind = 5
	End     Kind = 6
	Reset   Kind = 7
	Ping    Kind = 8
	Pong    Kind = 9
	Hello   Kind = 10
	Welcome Kind = 11
	Ready   Kind = 12
	Refuse  Kind = 13
)

const (
	headSize   = 9 // length, stream, kind
	afterSize  = 5 // what length counts besides the payload
	MaxPayload = 65536
	DataHead   = 9 // channel, offset
	MaxData    = MaxPayload - DataHead
)

// ErrViolation is wrapped by every error that means: the peer broke the rules.
var ErrViolation = errors.New("protocol violation")

type Frame struct {
	Stream  uint32
	Kind    Kind
	Payload []byte
}

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrViolation, fmt.Sprintf(format, args...))
}

// Check says whether a frame is one that its kind allows, seen alone.
func Check(f Frame) error {
	if f.Kind < Open || f.Kind > Refuse {
		return violation("unknown kind %d", f.Kind)
	}
	if (f.Kind >= Ping) != (f.Stream == 0) {
		return violation("kind %d on stream %d", f.Kind, f.Stream)
	}
	n := len(f.Payload)
	switch f.Kind {
	case Open, Message:
		if n < 2 { // the shortest JSON object; an empty message would cost no credit and so have no bound
			return violation("kind %d of %d bytes", f.Kind, n)
		}
	case Data:
		if n < DataHead {
			return violation("short data frame")
		}
	case Credit:
		if n != 4 {
			return violation("credit of %d bytes", n)
		}
	case End:
		if n != 0 {
			return violation("end with a payload")
		}
	case Ping, Pong:
		if n != 8 {
			return violation("ping of %d bytes", n)
		}
	}
	return nil
}

// Append adds the encoded frame to dst. The payload may come in two pieces, so that callers need not join them.
func Append(dst []byte, stream uint32, kind Kind, head, body []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(afterSize+len(head)+len(body)))
	dst = binary.BigEndian.AppendUint32(dst, stream)
	dst = append(dst, byte(kind))
	dst = append(dst, head...)
	return append(dst, body...)
}

// large are payloads to be used again: a bulk transfer would otherwise make the collector its main work.
var large = sync.Pool{New: func() any { return new([MaxPayload]byte) }}

const pooledFrom = 16 << 10

// Release gives a payload back for reuse. Only its last user may call it; one that is never given back is collected.
func Release(payload []byte) {
	if cap(payload) == MaxPayload {
		large.Put((*[MaxPayload]byte)(payload[:MaxPayload]))
	}
}

func room(n uint32) []byte {
	if n < pooledFrom {
		return make([]byte, n)
	}
	return large.Get().(*[MaxPayload]byte)[:n]
}

// Read reads one frame. The payload is the caller's, never larger than MaxPayload.
func Read(r io.Reader) (Frame, error) {
	var head [headSize]byte
	if _, err := io.ReadFull(r, head[:4]); err != nil {
		return Frame{}, err
	}
	length := binary.BigEndian.Uint32(head[:4])
	if length < afterSize || length > afterSize+MaxPayload {
		return Frame{}, violation("length %d", length)
	}
	if _, err := io.ReadFull(r, head[4:]); err != nil {
		return Frame{}, eof(err)
	}
	f := Frame{Stream: binary.BigEndian.Uint32(head[4:8]), Kind: Kind(head[8])}
	if length > afterSize {
		f.Payload = room(length - afterSize)
		if _, err := io.ReadFull(r, f.Payload); err != nil {
			return Frame{}, eof(err)
		}
	}
	return f, Check(f)
}

// eof: the end of the stream inside a frame is never a clean end.
func eof(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
