package procs

import (
	"os"
	"syscall"
	"testing"
	"time"
)

func TestAMarkStaysWithADaemonWithoutEnvironment(t *testing.T) {
	byLimit = true
	defer func() { byLimit = false }()
	const tag, other = FirstTag + 77, FirstTag + 78
	var pid int
	err := Marked(tag, func() (err error) {
		script := "(env -i setsid setsid sleep 60 </dev/null >/dev/null 2>&1 &)"
		pid, err = syscall.ForkExec("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{Env: os.Environ()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	found := func(tag uint32) int { return len(living(Scan(tag))) }
	for range 200 {
		if found(tag) == 1 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if found(tag) != 1 || found(other) != 0 {
		t.Fatal(Scan(tag), Scan(other))
	}
	if mark := markOf(ReadSmall("/proc/self/limits", make([]byte, 8192))); mark != 0 {
		t.Fatal("this process has kept the mark", mark)
	}
	signalEach(func(yield func(Process) bool) {
		for _, p := range Scan(tag) {
			yield(p)
		}
	}, syscall.SIGKILL)
	for range 200 {
		if found(tag) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("it is still there")
}

func TestMarksInLimits(t *testing.T) {
	for text, want := range map[string]uint32{
		"": 0,
		"Max realtime timeout      unlimited            unlimited            us        \n": 0,
		"Max realtime timeout      1073741825           unlimited            us        \n": FirstTag + 1,
		"Max realtime timeout      5000                 unlimited            us        \n": 0,
		"Max realtime timeout":      0,
		"Max cpu time   1073741825": 0,
	} {
		if got := markOf([]byte(text)); got != want {
			t.Errorf("%q: %d", text, got)
		}
	}
}
