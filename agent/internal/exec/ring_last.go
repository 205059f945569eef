package exec

import "slices"

// last is a copy of the last bytes of a channel: size of them, or as many as are held in one piece.
//
// Each channel has a pipe of its own, and the pipes are not read in the order in which the command wrote. So the last
// words on one of them may stand far above the end of the output, below what was still in the other.
func (r *ring) last(channel byte, size int) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	segments, from, end := r.segments, r.base, r.base+uint64(len(r.data))
	if r.full && r.tailRoom() > 0 {
		segments, from, end = r.tail.segments[r.tail.first:], r.tail.from, r.tail.end
	}
	var last []byte
	for i := len(segments) - 1; i >= 0 && len(last) < size; i-- {
		start := max(segments[i].from, from)
		if segments[i].channel == channel {
			wanted := min(uint64(size-len(last)), end-start)
			last = append(r.between(end-wanted, end), last...)
		}
		end = start
	}
	return last
}

// between is a copy of what stands between two offsets that are both held.
func (r *ring) between(from, to uint64) []byte {
	if !r.full || r.tailRoom() == 0 {
		return slices.Clone(r.data[from-r.base : to-r.base])
	}
	var all []byte
	for from < to {
		piece := r.data[r.place(from):]
		piece = piece[:min(uint64(len(piece)), to-from)]
		all = append(all, piece...)
		from += uint64(len(piece))
	}
	return all
}
