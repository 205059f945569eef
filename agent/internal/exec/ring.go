package exec

import (
	"sync"
	"sync/atomic"
)

const (
	followBytes = 1 << 20 // what an uncapped exec's ring holds
	maxSegments = 1 << 20 // changes between stdout and stderr that one ring records
)

// budget is the memory that all rings of a sandbox may take together.
type budget struct {
	used atomic.Int64
	max  atomic.Int64
}

// segment: from this offset on, bytes are of this channel.
type segment struct {
	from    uint64
	channel byte
}

// ring is the output of one exec. With a limit it keeps exactly the first and the last bytes, half of the limit each (see
// ring_capped.go); without one it keeps the last followBytes and makes the command wait for readers that are attached, as any
// pipe would.
type ring struct {
	mu       sync.Mutex
	changed  *sync.Cond // more output, a reader moved or left, or the exit is known
	limit    int        // 0: none
	head     int        // of the limit: how much is for the first bytes
	base     uint64     // offset of data[0]
	data     []byte
	segments []segment
	produced uint64 // bytes that the command has written, kept or not
	errors   uint64 // of these, on stderr
	full     bool   // something was dropped
	tail     tail   // once it is full
	readers  map[*reader]struct{}
	exit     *Exit
	shared   *budget
	counted  int // what this ring has taken of it
}

type reader struct {
	ring   *ring
	offset uint64
	gone   bool
}

func newRing(limit int, shared *budget) *ring {
	r := &ring{limit: limit, head: limit - limit/2, readers: map[*reader]struct{}{}, shared: shared}
	r.changed = sync.NewCond(&r.mu)
	return r
}

// write takes output in. It says whether the limit has been passed.
func (r *ring) write(channel byte, p []byte) (over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.produced += uint64(len(p))
	if channel == 2 {
		r.errors += uint64(len(p))
	}
	if r.limit > 0 {
		r.writeCapped(channel, p)
		return r.full
	}
	for len(p) > 0 {
		r.makeRoom()
		n := min(len(p), followBytes-len(r.data))
		r.append(channel, p[:n])
		p = p[n:]
	}
	return false
}

// makeRoom waits for the slowest reader, then drops what is oldest.
func (r *ring) makeRoom() {
	for {
		if len(r.data) < followBytes && len(r.segments) < maxSegments {
			return
		}
		slowest := r.base + uint64(len(r.data))
		for reader := range r.readers {
			slowest = min(slowest, max(reader.offset, r.base))
		}
		// Half at once, so that the bytes are moved rarely.
		drop := min(slowest-r.base, uint64(len(r.data)))
		if drop >= followBytes/2 || (drop > 0 && drop == uint64(len(r.data))) {
			r.drop(min(drop, followBytes/2))
			return
		}
		r.changed.Wait()
	}
}

func (r *ring) drop(n uint64) {
	r.data = append(r.data[:0], r.data[n:]...)
	r.base += n
	i := 0
	for i+1 < len(r.segments) && r.segments[i+1].from <= r.base {
		i++
	}
	r.segments = append(r.segments[:0], r.segments[i:]...)
}

func (r *ring) append(channel byte, p []byte) {
	if len(p) == 0 {
		return
	}
	if n := len(r.segments); n == 0 || r.segments[n-1].channel != channel {
		r.segments = append(r.segments, segment{r.base + uint64(len(r.data)), channel})
	}
	if need := len(r.data) + len(p); r.limit > 0 && need > cap(r.data) { // append would take more than the limit
		r.data = append(make([]byte, 0, min(r.limit, max(need, 2*cap(r.data)))), r.data...)
	}
	r.data = append(r.data, p...)
	r.count()
	r.changed.Broadcast()
}

// count settles with the budget what the ring takes now.
func (r *ring) count() {
	held := cap(r.data) + 16*cap(r.segments) + 16*cap(r.tail.segments)
	r.shared.used.Add(int64(held - r.counted))
	r.counted = held
}

// finish records the exit: readers get it after the last byte.
func (r *ring) finish(exit *Exit) {
	r.mu.Lock()
	exit.Truncated = r.full
	exit.OutputBytes, exit.StderrBytes = r.produced, r.errors
	if r.full {
		exit.GapFrom, exit.GapTo = r.headEnd(), r.tail.from
	}
	r.exit = exit
	r.changed.Broadcast()
	r.mu.Unlock()
}

// state says up to which offset there is output to read, and the exit once it is known.
func (r *ring) state() (end uint64, exit *Exit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.full && r.exit != nil {
		return r.tail.end, r.exit
	}
	return r.base + r.readable(), r.exit
}

// held is the memory that the ring takes.
func (r *ring) held() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counted
}

// forget lets the output go, and keeps the exit.
func (r *ring) forget() {
	r.mu.Lock()
	r.base += uint64(len(r.data))
	r.data, r.segments, r.tail.segments = nil, nil, nil
	r.tail.from = r.tail.end
	r.count()
	r.mu.Unlock()
}

func (r *ring) attach(offset uint64) *reader {
	rd := &reader{ring: r, offset: offset}
	r.mu.Lock()
	r.readers[rd] = struct{}{}
	r.mu.Unlock()
	return rd
}

func (rd *reader) detach() {
	rd.ring.mu.Lock()
	rd.gone = true
	delete(rd.ring.readers, rd)
	rd.ring.changed.Broadcast()
	rd.ring.mu.Unlock()
}

// next waits for more and copies it into buf: bytes of one channel, or the exit at the end. ok is false once detached.
func (rd *reader) next(buf []byte) (channel byte, offset uint64, n int, exit *Exit, ok bool) {
	r := rd.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if rd.gone {
			return 0, 0, 0, nil, false
		}
		rd.offset = max(rd.offset, r.base)
		end := r.base + r.readable()
		if rd.offset < end {
			channel, stop := channelAt(r.segments, rd.offset, end)
			offset := rd.offset
			n := copy(buf, r.data[offset-r.base:stop-r.base])
			rd.offset += uint64(n)
			r.changed.Broadcast() // a command that waits for readers may go on
			return channel, offset, n, nil, true
		}
		if r.full && r.exit != nil && rd.offset < r.tail.end {
			rd.offset = max(rd.offset, r.tail.from)
			channel, offset := r.readTail(rd.offset, &buf)
			if len(buf) > 0 {
				rd.offset += uint64(len(buf))
				return channel, offset, len(buf), nil, true
			}
		}
		if r.exit != nil {
			return 0, 0, 0, r.exit, true
		}
		r.changed.Wait()
	}
}

// channelAt finds the channel of an offset and where its run of bytes stops.
func channelAt(segments []segment, offset, end uint64) (channel byte, stop uint64) {
	low, high := 0, len(segments)
	for high-low > 1 {
		mid := (low + high) / 2
		if segments[mid].from <= offset {
			low = mid
		} else {
			high = mid
		}
	}
	if low+1 < len(segments) {
		end = min(end, segments[low+1].from)
	}
	return segments[low].channel, end
}
