package exec

import (
	"os"
	osexec "os/exec"
	"strconv"
	"syscall"
	"testing"

	"sandlot.dev/agent/internal/exec/procs"
)

// S2: a process that forks and exits, over and over, is in no list by the time it could be signalled. As in a sandbox,
// where the agent is PID 1 and can stop everything.
func TestTimeoutEndsAProcessThatKeepsForking(t *testing.T) {
	if os.Getpid() != 1 {
		inOwnNamespace(t)
		return
	}
	must(t, syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""))
	must(t, syscall.Mount("proc", "/proc", "proc", 0, ""))
	const keepForking = `import os, time
if os.fork():
    time.sleep(600)
while True:
    if os.fork():
        os._exit(0)
    os.setsid()`
	r := testRegistry(t)
	// The more there is to read, the older the list is when it has been read.
	start(t, r, Request{ExecID: "others", Command: "for i in $(seq 150); do sleep 600 & done; wait"})
	for i := range 20 {
		e := start(t, r, Request{ExecID: strconv.Itoa(i), Argv: []string{"python3", "-c", keepForking}, TimeoutMS: 300})
		tag := e.tag
		if got := wait(t, e); got.Reason != "timeout" {
			t.Fatalf("%+v", got)
		}
		thaw := procs.Freeze()
		left := procs.Alive(tag)
		thaw()
		if len(left) > 0 {
			t.Fatalf("round %d: left are %+v", i, left)
		}
	}
}

// inOwnNamespace runs the calling test again, as PID 1.
func inOwnNamespace(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: a PID namespace of its own")
	}
	again := osexec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	if out, err := again.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
