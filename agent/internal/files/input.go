package files

import (
	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/frame"
	"sandlot.dev/agent/internal/mux"
)

// input is what a worker sends on a stream as DATA, channel 0, from offset 0 without gaps. It ends in io.EOF at
// the worker's END, and in another error at its RESET or the link's end.
type input struct {
	stream *mux.Stream
	total  uint64
	rest   []byte
	last   mux.Item
}

// next returns the next piece as it came, uncopied; it is valid until the call after.
func (in *input) next() ([]byte, error) {
	in.last.Release()
	item, err := in.stream.Recv()
	in.last = item
	if err != nil {
		return nil, err
	}
	if item.Kind != frame.Data || item.Channel != 0 || item.Offset != in.total {
		return nil, failure.New("bad_request", "only data on channel 0, in order, may be sent here")
	}
	in.total += uint64(len(item.Payload))
	return item.Payload, nil
}

// Read implements io.Reader.
func (in *input) Read(p []byte) (int, error) {
	for len(in.rest) == 0 {
		piece, err := in.next()
		if err != nil {
			return 0, err
		}
		in.rest = piece
	}
	n := copy(p, in.rest)
	in.rest = in.rest[n:]
	return n, nil
}
