package exec

import (
	"bytes"
	"regexp"
	"strconv"
)

const tickMS = 10 // USER_HZ is 100 on every Linux that we run on

var shellName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

type cpuTime struct{ user, system float64 }

// readCPU is what a process and its reaped children have used.
func readCPU(pid int) cpuTime {
	stat := readSmall("/proc/"+strconv.Itoa(pid)+"/stat", make([]byte, 1024))
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // the name before it may hold anything, this too
	if len(fields) < 15 {
		return cpuTime{}
	}
	at := func(i int) float64 {
		n, _ := strconv.ParseFloat(string(fields[i]), 64) // 0 when unreadable
		return n * tickMS
	}
	return cpuTime{user: at(11) + at(13), system: at(12) + at(14)}
}
