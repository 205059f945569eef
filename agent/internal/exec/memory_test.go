package exec

import (
	"testing"
	"time"
)

func TestNobodyElseIsKilledWhileMemoryComesBack(t *testing.T) {
	const limit = 100
	then := time.Unix(1000, 0)
	last := kill{at: then, used: 120}
	for _, c := range []struct {
		name    string
		last    kill
		used    int64
		after   time.Duration
		another bool
	}{
		{"nothing was killed yet", kill{}, 101, 0, true},
		{"the limit itself is allowed", kill{}, 100, 0, false},
		{"the killed one's memory is still there", last, 120, 10 * time.Millisecond, false},
		{"some of it is back", last, 110, settles / 2, false},
		{"somebody takes more meanwhile", last, 121, 10 * time.Millisecond, true},
		{"it has had its time", last, 110, settles + time.Millisecond, true},
		{"all of it is back", last, 50, settles + time.Millisecond, false},
	} {
		if got := c.last.another(c.used, limit, then.Add(c.after)); got != c.another {
			t.Errorf("%s: another kill is %v", c.name, got)
		}
	}
}
