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

func TestCappedRingKeepsExactlyTheFirstBytes(t *testing.T) {
	r := newRing(1000, roomy())
	var want []byte
	for i := range 300 {
		p := bytes.Repeat([]byte{byte(i)}, 7)
		want = append(want, p...)
		over := r.write(byte(1+i%2), p)
		if over != (len(want) > 1000) {
			t.Fatalf("over=%v after %d", over, len(want))
		}
	}
	r.finish(&Exit{})
	for _, offset := range []uint64{0, 1, 6, 7, 500, 999, 1000, 5000} {
		got, _ := readAll(t, r.attach(offset))
		if !bytes.Equal(got, want[min(offset, 1000):1000]) {
			t.Fatalf("from %d: %d bytes", offset, len(got))
		}
	}
	if !r.exit.Truncated || r.exit.OutputBytes != 2100 {
		t.Fatalf("%+v", r.exit)
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
