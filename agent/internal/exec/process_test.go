package exec

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sandlot.dev/agent/internal/exec/procs"
)

func TestExits(t *testing.T) {
	r := testRegistry(t)
	cases := map[string]struct {
		request      Request
		code, signal int
		reason       string
	}{
		"success":     {Request{Command: "true"}, 0, 0, "exited"},
		"code":        {Request{Command: "exit 3"}, 3, 0, "exited"},
		"signal":      {Request{Command: "kill -9 $$"}, 137, 9, "exited"},
		"not_found":   {Request{Argv: []string{"no-such-program"}}, 127, 0, "start_failed"},
		"no_path":     {Request{Argv: []string{"/no/such/program"}}, 127, 0, "start_failed"},
		"folder":      {Request{Argv: []string{"/"}}, 126, 0, "start_failed"},
		"not_program": {Request{Argv: []string{"/etc/passwd"}}, 126, 0, "start_failed"},
		"long_name":   {Request{Argv: []string{"/" + strings.Repeat("x", 100_000)}}, 126, 0, "start_failed"},
		"empty_name":  {Request{Argv: []string{""}}, 126, 0, "start_failed"},
	}
	for name, c := range cases {
		c.request.ExecID = name
		got := run(t, r, c.request)
		if got.Code != c.code || got.Signal != c.signal || got.Reason != c.reason {
			t.Errorf("%s: %+v", name, got)
		}
		if len(got.Error) > 1000 { // the exit must fit into a frame
			t.Errorf("%s: an error of %d bytes", name, len(got.Error))
		}
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	r := testRegistry(t)
	for name, q := range map[string]Request{
		"no id":        {Command: "true"},
		"two commands": {ExecID: "a", Command: "true", Argv: []string{"true"}},
		"none":         {ExecID: "a"},
		"proc":         {ExecID: "a", Command: "true", Cwd: "/./proc/../proc/self/fd/3"},
		"relative":     {ExecID: "a", Command: "true", Cwd: "x"},
		"missing":      {ExecID: "a", Command: "true", Cwd: "/no/such/folder"},
		"overflow":     {ExecID: "a", Command: "true", TimeoutMS: 1 << 62},
		"NUL":          {ExecID: "a", Command: "true\x00"},
		"env":          {ExecID: "a", Command: "true", Env: map[string]string{"A=B": "c"}},
	} {
		if _, _, err := r.Start(q); refused(err) != "bad_request" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(r.execs) != 0 || r.running != 0 {
		t.Errorf("%d known, %d running", len(r.execs), r.running)
	}
}

func TestSameIDAttaches(t *testing.T) {
	r := testRegistry(t)
	q := Request{ExecID: "one", Command: "echo x >>log; cat log", Env: map[string]string{"A": "1", "B": "2"}}
	first := run(t, r, q)
	e, existing, err := r.Start(q)
	if err != nil || !existing {
		t.Fatal(existing, err)
	}
	if again := wait(t, e); again.out != "x\n" || again.out != first.out {
		t.Fatalf("%q, then %q", first.out, again.out)
	}
	q.Env = map[string]string{"A": "1"}
	if _, _, err := r.Start(q); refused(err) != "conflict" {
		t.Fatal(err)
	}
}

func TestOutputs(t *testing.T) {
	r := testRegistry(t)
	got := run(t, r, Request{ExecID: "both", Command: "echo out; echo err >&2; echo more", OutputLimit: 1000})
	if got.out != "out\nmore\n" || got.err != "err\n" || got.Truncated || got.OutputBytes != 13 {
		t.Fatalf("%+v", got)
	}
	got = run(t, r, Request{ExecID: "cut", Command: "printf 0123456789abcdef", OutputLimit: 10})
	if got.out != "01234bcdef" || !got.Truncated || got.OutputBytes != 16 || got.Reason != "exited" {
		t.Fatalf("%+v", got)
	}
	// The last bytes are in the pipe when the command has ended already: none may be lost.
	for i := range 20 {
		got = run(t, r, Request{ExecID: "all" + strconv.Itoa(i), Command: "head -c 60000 /dev/zero", OutputLimit: 1 << 20})
		if len(got.out) != 60000 {
			t.Fatalf("%d bytes", len(got.out))
		}
	}
}

func TestPassingALimitThatKillsIsAlwaysTold(t *testing.T) {
	r := testRegistry(t)
	for i := range 20 { // the command may have ended before its output is read
		got := run(t, r, Request{ExecID: strconv.Itoa(i), Command: "head -c 50000 /dev/zero", OutputLimit: 10, OnLimit: "kill"})
		if got.Reason != "output_limit" || len(got.out) != 10 {
			t.Fatalf("%d: %+v", i, got.Exit)
		}
	}
}

func TestTimeoutReachesWhatHasDaemonised(t *testing.T) {
	r := testRegistry(t)
	e := start(t, r, Request{ExecID: "slow", Command: "setsid sleep 600 & (setsid -f env -i setsid sleep 600 &); sleep 600", TimeoutMS: 150})
	got := wait(t, e)
	if got.Reason != "timeout" || got.Signal == 0 || got.DurationMS < 140 {
		t.Fatalf("%+v", got)
	}
	until(t, "all are gone", func() bool { return len(procs.Alive(e.tag)) == 0 })
}

func TestDeafCommandIsKilled(t *testing.T) {
	r := testRegistry(t)
	e := start(t, r, Request{ExecID: "deaf", Command: "trap '' TERM; echo on; while :; do sleep 1; done"})
	until(t, "it runs", func() bool { e.ring.mu.Lock(); defer e.ring.mu.Unlock(); return e.ring.produced > 0 })
	if n := e.Kill(); n == 0 {
		t.Fatal("signalled nobody")
	}
	if got := wait(t, e); got.Reason != "killed" || got.Signal != int(syscall.SIGKILL) {
		t.Fatalf("%+v", got)
	}
}

func TestChildInTheBackgroundLivesOn(t *testing.T) {
	r := testRegistry(t)
	command := "(while ! test -e go; do sleep .01; done; echo late; echo late; touch done; exec sleep 600) & echo now"
	e := start(t, r, Request{ExecID: "server", Command: command})
	if got := wait(t, e); got.out != "now\n" || got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	must(t, os.WriteFile(filepath.Join(r.setup.Workspace, "go"), nil, 0o644))
	until(t, "it printed and went on", func() bool {
		_, err := os.Stat(filepath.Join(r.setup.Workspace, "done"))
		return err == nil
	})
	// Killing an exec that has ended is for what it left.
	if n := e.Kill(); n == 0 || len(procs.Alive(e.tag)) != 0 {
		t.Fatalf("signalled %d, left %d", n, len(procs.Alive(e.tag)))
	}
}

func TestChildThatNeverStopsPrintingDoesNotHoldTheExec(t *testing.T) {
	r := testRegistry(t)
	for i, q := range []Request{{Command: "yes & yes >&2 & exit 4"}, {Command: "yes & yes >&2 & exit 4", OutputLimit: 100}, {Command: "yes & (exit 4)", Shell: "s"}} {
		q.ExecID = strconv.Itoa(i)
		if got := run(t, r, q); got.Code != 4 || got.Reason != "exited" {
			t.Fatalf("%+v", got.Exit)
		}
	}
}

func TestKillIsNotLostBeforeTheFork(t *testing.T) {
	r := testRegistry(t)
	e := &Exec{request: Request{ExecID: "early", Command: "sleep 600"}, ring: newRing(0, roomy()), begun: make(chan struct{})}
	r.running++
	e.end("killed")
	must(t, r.startProcess(e))
	if got := wait(t, e); got.Reason != "killed" || got.Signal == 0 {
		t.Fatalf("%+v", got)
	}
}

func TestTerminal(t *testing.T) {
	r := testRegistry(t)
	e := start(t, r, Request{ExecID: "tty", Command: "stty size; stty -echo; read x; stty size; echo got $x", Pty: &Pty{Rows: 20, Cols: 70}})
	until(t, "it runs", func() bool { e.ring.mu.Lock(); defer e.ring.mu.Unlock(); return e.ring.produced > 0 })
	must(t, e.Resize(Pty{Rows: 50, Cols: 120}))
	e.mu.Lock()
	stdin := e.stdin
	e.mu.Unlock()
	if _, err := stdin.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	got := wait(t, e)
	if got.Code != 0 || got.err != "" || !strings.HasPrefix(got.out, "20 70\r\n") || !strings.HasSuffix(got.out, "50 120\r\ngot hello\r\n") {
		t.Fatalf("%+v %q", got.Exit, got.out)
	}
	if err := e.Resize(Pty{Rows: 1, Cols: 1}); refused(err) != "bad_request" {
		t.Fatal(err)
	}
}

func TestProgramInARelativePath(t *testing.T) {
	r := testRegistry(t)
	must(t, os.Mkdir(filepath.Join(r.setup.Workspace, "bin"), 0o755))
	must(t, os.WriteFile(filepath.Join(r.setup.Workspace, "bin", "mine"), []byte("#!/bin/sh\necho mine\n"), 0o755))
	if got := run(t, r, Request{ExecID: "a", Argv: []string{"mine"}, Env: map[string]string{"PATH": "bin"}}); got.out != "mine\n" {
		t.Fatalf("%+v", got)
	}
}

func TestLongCommand(t *testing.T) {
	r := testRegistry(t)
	got := run(t, r, Request{ExecID: "long", Command: "x=" + strings.Repeat("y", 300_000) + "; echo ${#x}"})
	if got.out != "300000\n" {
		t.Fatalf("%+v", got.Exit)
	}
}

// S2: a process whose first thread has exited shows as a zombie while its other threads run.
func TestTimeoutEndsAProcessWithoutItsFirstThread(t *testing.T) {
	const exitThread = `import ctypes, threading, time, os
threading.Thread(target=time.sleep, args=(600,)).start()
print(os.getpid(), flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)`
	r := testRegistry(t)
	for i, command := range []string{`exec python3 -c "$CODE"`, `setsid python3 -c "$CODE" & sleep 600`} {
		e := start(t, r, Request{ExecID: strconv.Itoa(i), Command: command, Env: map[string]string{"CODE": exitThread}, TimeoutMS: 4000})
		tag := e.tag
		until(t, "a first thread that has exited", func() bool {
			for _, p := range procs.Scan(tag) {
				if p.State == 'Z' && p.Threads == 2 {
					return p.RSSKB > 0
				}
			}
			return false
		})
		if got := wait(t, e); got.Reason != "timeout" {
			t.Fatalf("%+v", got)
		}
		if left := procs.Alive(tag); len(left) > 0 {
			t.Fatalf("%s: left: %+v", command, left)
		}
	}
}

// S2: the command itself ends at once, its child only when it is killed. The result comes when both are gone.
func TestTimeoutIsReportedWhenNothingIsLeft(t *testing.T) {
	r := testRegistry(t)
	e := start(t, r, Request{ExecID: "a", Command: `sh -c 'trap "" TERM; sleep 600' >/dev/null 2>&1 & sleep 600`, TimeoutMS: 300})
	tag := e.tag
	if got := wait(t, e); got.Reason != "timeout" {
		t.Fatalf("%+v", got)
	}
	if left := procs.Alive(tag); len(left) > 0 {
		t.Fatalf("left: %+v", left)
	}
}

func TestMergedOutputIsInOrder(t *testing.T) {
	r := testRegistry(t)
	var want strings.Builder
	for i := range 40 {
		fmt.Fprintf(&want, "out %d\nerr %d\n", i, i)
	}
	for i := range 30 {
		for name, q := range map[string]Request{
			"command": {Command: "for i in $(seq 0 39); do echo out $i; echo err $i >&2; done"},
			"argv":    {Argv: []string{"sh", "-c", "for i in $(seq 0 39); do echo out $i; echo err $i >&2; done"}},
			"shell":   {Command: "for i in $(seq 0 39); do echo out $i; echo err $i >&2; done", Shell: "s"},
		} {
			q.ExecID, q.Merge = fmt.Sprint(name, i), true
			if got := run(t, r, q); got.out != want.String() || got.err != "" {
				t.Fatalf("%s: %q, %q", name, got.out, got.err)
			}
		}
	}
	for name, q := range map[string]Request{
		"program": {Argv: []string{"no-such-program"}},
		"folder":  {Command: "true", Shell: "s", Cwd: "/root/nowhere"},
	} {
		q.ExecID, q.Merge = name, true
		if got := run(t, r, q); got.out == "" || got.err != "" || got.Code == 0 {
			t.Fatalf("%s: %q, %q, %d", name, got.out, got.err, got.Code)
		}
	}
	must(t, r.closeShell("s"))
}
