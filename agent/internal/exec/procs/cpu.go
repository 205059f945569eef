package procs

import (
	"bytes"
	"strconv"
)

const tickMS = 10 // USER_HZ is 100 on every Linux that we run on

// CPUTime is in milliseconds.
type CPUTime struct{ User, System float64 }

// ReadCPU is what a process and its reaped children have used.
func ReadCPU(pid int) CPUTime {
	stat := ReadSmall("/proc/"+strconv.Itoa(pid)+"/stat", make([]byte, 1024))
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // the name before it may hold anything, this too
	if len(fields) < 15 {
		return CPUTime{}
	}
	at := func(i int) float64 {
		n, _ := strconv.ParseFloat(string(fields[i]), 64) // 0 when unreadable
		return n * tickMS
	}
	return CPUTime{User: at(11) + at(13), System: at(12) + at(14)}
}
