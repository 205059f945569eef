package exec

import (
	"bytes"
	"testing"
	"time"
)

func budgetOf(bytes int64) *budget {
	b := &budget{}
	b.max.Store(bytes)
	return b
}

func roomy() *budget { return budgetOf(1 << 40) }

func TestRingsShareABudget(t *testing.T) {
	shared := budgetOf(100_000)
	rings := []*ring{newRing(1<<20, shared), newRing(1<<20, shared)}
	piece := make([]byte, 1000)
	for range 500 {
		for _, r := range rings {
			r.write(1, piece)
		}
	}
	if used := shared.used.Load(); used > 250_000 {
		t.Fatalf("%d bytes are held", used)
	}
	for _, r := range rings {
		r.finish(&Exit{})
		if !r.exit.Truncated {
			t.Fatal("what was dropped is not told")
		}
		r.forget()
	}
	if used := shared.used.Load(); used != 0 {
		t.Fatalf("%d bytes are still counted", used)
	}
}

func readAll(t *testing.T, rd *reader) (got []byte, gaps int) {
	t.Helper()
	buf := make([]byte, 1000)
	next := rd.offset
	for {
		_, at, n, exit, ok := rd.next(buf)
		if !ok {
			t.Fatal("detached")
		}
		if exit != nil {
			return got, gaps
		}
		if at != next {
			gaps++
		}
		next = at + uint64(n)
		got = append(got, buf[:n]...)
	}
}

// fill writes numbered pieces of 7 bytes on both channels in turn, and returns all of them.
func fill(r *ring, pieces int) (all []byte, marks []byte) {
	for i := range pieces {
		p := bytes.Repeat([]byte{byte(i)}, 7)
		channel := byte(1 + i%2)
		all, marks = append(all, p...), append(marks, bytes.Repeat([]byte{channel}, 7)...)
		r.write(channel, p)
	}
	return all, marks
}

func TestCappedRingKeepsExactlyBothEnds(t *testing.T) {
	for _, limit := range []int{1, 2, 3, 999, 1000, 1001} {
		for _, pieces := range []int{1, 143, 144, 180, 300, 5000} {
			r := newRing(limit, roomy())
			all, marks := fill(r, pieces)
			r.finish(&Exit{})
			from, to := len(all), len(all)
			if len(all) > limit {
				from, to = limit-limit/2, len(all)-limit/2
			}
			if r.exit.Truncated != (len(all) > limit) || r.exit.OutputBytes != uint64(len(all)) {
				t.Fatalf("%d of %d: %+v", limit, len(all), r.exit)
			}
			if len(all) > limit && (r.exit.GapFrom != uint64(from) || r.exit.GapTo != uint64(to)) {
				t.Fatalf("%d of %d: %+v", limit, len(all), r.exit)
			}
			if errs := bytes.Count(marks, []byte{2}); r.exit.StderrBytes != uint64(errs) {
				t.Fatalf("%d bytes of stderr, not %d", r.exit.StderrBytes, errs)
			}
			for _, offset := range []int{0, 1, 6, 7, 499, 500, 501, 999, 1000, 1001, len(all) - 1, len(all), len(all) + 5} {
				rd := r.attach(uint64(max(0, offset)))
				buf := make([]byte, 11)
				next := max(0, offset)
				for {
					channel, at, n, exit, _ := rd.next(buf)
					if exit != nil {
						break
					}
					if next < from || next >= to {
						if int(at) != next {
							t.Fatalf("%d of %d from %d: at %d, not %d", limit, len(all), offset, at, next)
						}
					} else if int(at) != to {
						t.Fatalf("%d of %d from %d: after the gap at %d, not %d", limit, len(all), offset, at, to)
					}
					next = int(at) + n
					if !bytes.Equal(buf[:n], all[at:next]) || bytes.Count(marks[at:next], []byte{channel}) != n {
						t.Fatalf("%d of %d from %d: wrong bytes at %d", limit, len(all), offset, at)
					}
					if next == from {
						next = to
					}
				}
				if next < len(all) && !(next >= from && to == len(all)) {
					t.Fatalf("%d of %d from %d: ends at %d", limit, len(all), offset, next)
				}
			}
		}
	}
}

func TestCappedRingTakesNoMoreThanItsLimit(t *testing.T) {
	r := newRing(100_000, roomy())
	piece := make([]byte, pumpBytes)
	for range 1000 {
		r.write(1, piece)
	}
	if held := r.held(); held > 100_000+pumpBytes+16 {
		t.Fatalf("%d bytes are held", held)
	}
}

// What a reader sees while the command runs is the beginning, up to the limit; the end is not known yet.
func TestReadersOfACappedRingWaitForItsEnd(t *testing.T) {
	r := newRing(1000, roomy())
	live := r.attach(0)
	buf := make([]byte, 2000)
	all := make([]byte, 1000, 3000)
	r.write(1, all)
	if _, at, n, _, _ := live.next(buf); at != 0 || n != 1000 {
		t.Fatalf("%d bytes at %d", n, at)
	}
	for range 20 {
		piece := bytes.Repeat([]byte("x"), 100)
		all = append(all, piece...)
		if !r.write(1, piece) {
			t.Fatal("the limit is passed")
		}
	}
	if end, _ := r.state(); end != 500 {
		t.Fatalf("to be read up to %d", end)
	}
	r.finish(&Exit{})
	if end, _ := r.state(); end != 3000 {
		t.Fatalf("to be read up to %d", end)
	}
	if _, at, n, _, _ := live.next(buf); at != 2500 || !bytes.Equal(buf[:n], all[2500:]) {
		t.Fatalf("%d bytes at %d", n, at)
	}
}

func TestLimitThatKillsKeepsTheBeginning(t *testing.T) {
	r := newRing(1000, roomy())
	r.head = 1000
	all, _ := fill(r, 300)
	r.finish(&Exit{})
	got, _ := readAll(t, r.attach(0))
	if !bytes.Equal(got, all[:1000]) || r.exit.GapFrom != 1000 || r.exit.GapTo != 2100 {
		t.Fatalf("%d bytes, %+v", len(got), r.exit)
	}
}

func TestRingThatGetsNoMoreRoomKeepsBothEndsOfWhatItHas(t *testing.T) {
	shared := budgetOf(1 << 40)
	r := newRing(1000, shared)
	all, _ := fill(r, 100) // 700 bytes
	shared.max.Store(0)
	more, _ := fill(r, 100)
	all = append(all, more...)
	r.finish(&Exit{})
	got, _ := readAll(t, r.attach(0))
	to := r.exit.GapTo
	if r.exit.GapFrom != 500 || to < 1200 || !bytes.Equal(got, append(all[:500:500], all[to:]...)) {
		t.Fatalf("%d bytes, %+v", len(got), r.exit)
	}
}

func TestLastBytesAreReadWhereverTheTailGoesRound(t *testing.T) {
	for _, limit := range []int{0, 1, 2, 3, 100} {
		for _, size := range []int{1, 13, 50, 200} {
			for shift := range 120 {
				r := newRing(limit, roomy())
				all := bytes.Repeat([]byte("x"), shift)
				r.write(2, all)
				for i := range 20 {
					word := []byte{byte('a' + i), '.'}
					r.write(2, word)
					all = append(all, word...)
				}
				got := r.last(2, size)
				held := size
				if limit > 0 && len(all) > limit {
					held = min(size, limit/2)
				}
				if want := all[max(0, len(all)-held):]; limit != 1 && !bytes.Equal(got, want) {
					t.Fatalf("limit %d, size %d, shift %d: %q is not %q", limit, size, shift, got, want)
				}
			}
		}
	}
}

func TestLastBytesAreThoseOfOneChannel(t *testing.T) {
	for _, limit := range []int{0, 100, 1000} {
		for _, size := range []int{1, 4, 7, 1000} {
			r := newRing(limit, roomy())
			var all, errors []byte
			for i := range 40 {
				word := []byte{byte('a' + i), '.'}
				r.write(2, word)
				r.write(1, []byte("out"))
				all, errors = append(append(all, word...), "out"...), append(errors, word...)
			}
			dropped := 0 // of the output: what is no longer held in one piece with its end
			if limit > 0 && len(all) > limit {
				dropped = len(all) - limit/2
			}
			held := errors[len(errors)-bytes.Count(all[dropped:], []byte("."))*2:]
			if got, want := r.last(2, size), held[max(0, len(held)-size):]; !bytes.Equal(got, want) {
				t.Fatalf("limit %d, size %d: %q is not %q", limit, size, got, want)
			}
		}
	}
}

func TestChannelsKeepTheirOrder(t *testing.T) {
	r := newRing(100, roomy())
	r.write(1, []byte("out"))
	r.write(2, []byte("err"))
	r.write(1, []byte("put"))
	r.finish(&Exit{})
	rd := r.attach(1)
	var seen []string
	buf := make([]byte, 10)
	for {
		channel, _, n, exit, _ := rd.next(buf)
		if exit != nil {
			break
		}
		seen = append(seen, string('0'+channel)+string(buf[:n]))
	}
	if len(seen) != 3 || seen[0] != "1ut" || seen[1] != "2err" || seen[2] != "1put" {
		t.Fatalf("%v", seen)
	}
}

func TestUncappedRingWithoutReadersKeepsTheEnd(t *testing.T) {
	r := newRing(0, roomy())
	p := bytes.Repeat([]byte("x"), 100_000)
	for range 100 {
		r.write(1, p)
	}
	r.finish(&Exit{})
	got, gaps := readAll(t, r.attach(0))
	if gaps != 1 || len(got) < followBytes/2 || len(got) > followBytes {
		t.Fatalf("%d bytes, %d gaps", len(got), gaps)
	}
	if held := r.held(); held > 4*followBytes {
		t.Fatalf("holds %d", held)
	}
}

func TestUncappedRingWaitsForItsReader(t *testing.T) {
	r := newRing(0, roomy())
	rd := r.attach(0)
	const total = 20 << 20
	go func() {
		p := make([]byte, 64<<10)
		for range total / len(p) {
			r.write(1, p)
		}
		r.finish(&Exit{})
	}()
	got, gaps := readAll(t, rd)
	if len(got) != total || gaps != 0 {
		t.Fatalf("%d bytes, %d gaps", len(got), gaps)
	}
}

func TestWriterGoesOnWhenItsReaderLeaves(t *testing.T) {
	r := newRing(0, roomy())
	rd := r.attach(0)
	done := make(chan struct{})
	go func() { r.write(1, make([]byte, 4*followBytes)); close(done) }()
	select {
	case <-done:
		t.Fatal("did not wait")
	case <-time.After(20 * time.Millisecond):
	}
	rd.detach()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("waits for nobody")
	}
}
