package procs

import (
	"os"
	"testing"
)

func TestCPUTimeOfAnOddName(t *testing.T) {
	name := "a) b) R 1 2"
	if err := os.WriteFile("/proc/self/comm", []byte(name), 0); err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile("/proc/self/comm", []byte("procs.test"), 0)
	for ReadCPU(os.Getpid()).User < 20 { // endless if it is not found
	}
	if cpu := ReadCPU(os.Getpid()); cpu.User > 60_000 {
		t.Fatalf("%+v", cpu)
	}
}
