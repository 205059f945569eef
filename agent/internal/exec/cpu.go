package exec

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
)

const tickMS = 10 // USER_HZ is 100 on every Linux that we run on

var shellName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

type cpuTime struct{ user, system float64 }

// readCPU is what a process and its reaped children have used.
func readCPU(pid int) cpuTime {
	stat := readSmall("/proc/"+strconv.Itoa(pid)+"/stat", make([]byte, 1024))
	_, rest, _ := bytes.Cut(stat, []byte(") ")) // the name before it may hold anything but this is its last
	fields := bytes.Fields(rest)
	if len(fields) < 15 {
		return cpuTime{}
	}
	at := func(i int) float64 {
		n, _ := strconv.ParseFloat(string(fields[i]), 64) // 0 when unreadable
		return n * tickMS
	}
	return cpuTime{user: at(11) + at(13), system: at(12) + at(14)}
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
