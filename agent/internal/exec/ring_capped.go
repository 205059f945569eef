package exec

// A capped ring that is full keeps both ends of the output in the memory that it has: data[:head] are the first bytes
// and stay; data[head:] goes round and has the last ones. A byte of the tail with offset o stands at
// head + (o-head) mod (len(data)-head), which is where it came to stand when the data was not full yet.

// tail: which bytes data[head:] has, and of which channels.
type tail struct {
	from, end uint64
	segments  []segment
	first     int // in segments: those before are dropped
}

// writeCapped takes output in: all of it while there is room, then its end in place of what came before that.
func (r *ring) writeCapped(channel byte, p []byte) {
	tight := len(r.segments) >= maxSegments || r.shared.used.Load() > r.shared.max.Load()
	if !r.full {
		room := r.limit - len(r.data)
		if tight {
			room = 0
		}
		if len(p) <= room {
			r.append(channel, p)
			return
		}
		r.append(channel, p[:room])
		p = p[room:]
		r.becomeFull()
	}
	r.roll(channel, p, tight)
}

// becomeFull parts the head from the tail.
func (r *ring) becomeFull() {
	r.full = true
	r.tail.from, r.tail.end = r.headEnd(), uint64(len(r.data))
	if r.tail.from == r.tail.end {
		return
	}
	channel, _ := channelAt(r.segments, r.tail.from, r.tail.end)
	first := len(r.segments)
	for first > 0 && r.segments[first-1].from > r.tail.from {
		first--
	}
	r.tail.segments = append([]segment{{r.tail.from, channel}}, r.segments[first:]...)
	r.segments = r.segments[:first]
	r.count()
}

// headEnd is the offset at which the first bytes end.
func (r *ring) headEnd() uint64 { return uint64(min(r.head, len(r.data))) }

// tailRoom is how many of the last bytes can be kept.
func (r *ring) tailRoom() uint64 { return uint64(len(r.data)) - r.headEnd() }

// readable is how much of data can be read from its beginning. The last bytes are the last ones once the exit is known.
func (r *ring) readable() uint64 {
	if r.full {
		return r.headEnd()
	}
	return uint64(len(r.data))
}

// roll keeps the end of p. tight: the list of segments must not grow.
func (r *ring) roll(channel byte, p []byte, tight bool) {
	t, room := &r.tail, r.tailRoom()
	at := r.produced - uint64(len(p))
	t.end = r.produced
	if room == 0 {
		t.from = t.end
		return
	}
	if uint64(len(p)) > room {
		at += uint64(len(p)) - room
		p = p[uint64(len(p))-room:]
	}
	place := r.place(at)
	n := copy(r.data[place:], p)
	copy(r.data[r.head:], p[n:])
	if last := len(t.segments) - 1; last < t.first || t.segments[last].channel != channel {
		t.segments = append(t.segments, segment{at, channel})
		if kept := len(t.segments) - t.first; kept > 1 && (tight || kept > maxSegments) {
			t.first++
			t.from = max(t.from, t.segments[t.first].from)
		}
	}
	if t.end-t.from > room {
		t.from = t.end - room
	}
	for t.first+1 < len(t.segments) && t.segments[t.first+1].from <= t.from {
		t.first++
	}
	if t.first > len(t.segments)/2 { // moved rarely, so that each costs little
		t.segments = append(t.segments[:0], t.segments[t.first:]...)
		t.first = 0
	}
	r.count()
}

// place is where a byte of the tail stands in data.
func (r *ring) place(offset uint64) int {
	return r.head + int((offset-uint64(r.head))%r.tailRoom())
}

// readTail copies what stands at an offset of the tail into buf, and shortens buf to it.
func (r *ring) readTail(offset uint64, buf *[]byte) (channel byte, at uint64) {
	if offset >= r.tail.end || r.tailRoom() == 0 {
		*buf = (*buf)[:0]
		return 0, offset
	}
	channel, stop := channelAt(r.tail.segments[r.tail.first:], offset, r.tail.end)
	from := r.place(offset)
	to := min(len(r.data), from+int(stop-offset))
	*buf = (*buf)[:copy(*buf, r.data[from:to])]
	return channel, offset
}
