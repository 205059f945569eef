package exec

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func inShell(id, command string) Request { return Request{ExecID: id, Command: command, Shell: "s"} }

func TestShellKeepsItsState(t *testing.T) {
	r := testRegistry(t)
	run(t, r, inShell("1", "cd /tmp; A=1; export B=2; f() { echo f $A $B; }"))
	if got := run(t, r, inShell("2", "f; pwd; (exit 5)")); got.out != "f 1 2\n/tmp\n" || got.Code != 5 || got.ShellEnded || got.ShellNew {
		t.Fatalf("%+v", got)
	}
	q := inShell("3", `echo "$C"; pwd; echo $? >&2`)
	q.Cwd, q.Env = "/usr", map[string]string{"C": "it's\n$(me)"}
	if got := run(t, r, q); got.out != "it's\n$(me)\n/usr\n" || got.err != "0\n" {
		t.Fatalf("%+v", got)
	}
	if got := run(t, r, inShell("4", "pwd; echo $C | head -n 1")); got.out != "/usr\nit's $(me)\n" {
		t.Fatalf("%+v", got)
	}
}

func TestShellIsFreeForWhoIsToldTheEnd(t *testing.T) {
	r := testRegistry(t)
	busy := func() bool { r.mu.Lock(); defer r.mu.Unlock(); sh := r.shells["s"]; return sh.busy || sh.waiting > 0 }
	for i := range 50 {
		n := strconv.Itoa(i)
		e := start(t, r, inShell(n, "until test -e go"+n+"; do sleep .01; done"))
		<-e.begun
		if !busy() {
			t.Fatal("it is free while a command runs")
		}
		must(t, os.WriteFile(filepath.Join(r.setup.Workspace, "go"+n), nil, 0o644))
		if wait(t, e); busy() {
			t.Fatal("it is busy although its command has ended")
		}
	}
}

func TestShellThatEndsSaysSo(t *testing.T) {
	r := testRegistry(t)
	if got := run(t, r, inShell("1", "cd /tmp; X=1")); got.ShellEnded {
		t.Fatalf("%+v", got)
	}
	if got := run(t, r, inShell("2", "echo bye; exit 7")); got.Code != 7 || !got.ShellEnded || got.out != "bye\n" {
		t.Fatalf("%+v", got)
	}
	if got := run(t, r, inShell("3", "pwd; echo [$X]")); got.out != "/tmp\n[]\n" || got.ShellNew {
		t.Fatalf("%+v", got)
	}
	if got := run(t, r, inShell("4", "set -e; false; echo not here")); got.Code != 1 || !got.ShellEnded || got.out != "" {
		t.Fatalf("%+v", got)
	}
}

func TestShellThatDiedBetween(t *testing.T) {
	r := testRegistry(t)
	run(t, r, inShell("1", "(while ! test -e go; do sleep .01; done; kill -9 $$) &"))
	gone := r.shells["s"].gone
	must(t, os.WriteFile(filepath.Join(r.setup.Workspace, "go"), nil, 0o644))
	<-gone
	if got := run(t, r, inShell("2", "echo new")); !got.ShellNew || got.ShellEnded || got.out != "new\n" {
		t.Fatalf("%+v", got)
	}
}

// A command whose shell is killed right after it has reported keeps its own code.
func TestReportBeforeTheEndCounts(t *testing.T) {
	status, err := makeFifo(filepath.Join(t.TempDir(), "status"), 0o600)
	must(t, err)
	defer status.Close()
	gone := make(chan struct{})
	close(gone)
	for range 100 {
		_, err := status.WriteString("3 /tmp\x00")
		must(t, err)
		if code, cwd, ended := waitStatus(status, gone); code != 3 || cwd != "/tmp" || ended {
			t.Fatal(code, cwd, ended)
		}
	}
	if _, _, ended := waitStatus(status, gone); !ended {
		t.Fatal("did not end")
	}
}

func TestTimeoutEndsTheShell(t *testing.T) {
	r := testRegistry(t)
	q := inShell("1", "echo on; sleep 600")
	q.TimeoutMS = 100
	if got := run(t, r, q); got.Reason != "timeout" || !got.ShellEnded || got.out != "on\n" {
		t.Fatalf("%+v", got)
	}
	if got := run(t, r, inShell("2", "echo again")); got.out != "again\n" || got.ShellNew {
		t.Fatalf("%+v", got)
	}
}

func TestShellReadsInput(t *testing.T) {
	r := testRegistry(t)
	l := dial(t, r)
	s, err := l.Open(map[string]any{"op": "exec.start", "exec_id": "1", "shell": "s", "stdin": true, "command": "echo name?; read x; echo hello $x; cat"})
	must(t, err)
	recvUntil(t, s, "name?\n") // asks before anything is sent
	must(t, s.SendData(0, 0, []byte("you\n")))
	recvUntil(t, s, "hello you\n")
	must(t, s.SendData(0, 4, []byte("rest")))
	must(t, s.End())
	recvUntil(t, s, "rest")
	recvUntil(t, s, `"code":0`)
	q := inShell("2", "echo reads nothing")
	q.Stdin = true
	if got := run(t, r, q); got.out != "reads nothing\n" {
		t.Fatalf("%+v", got)
	}
	// Two readers that send and end at once.
	q = inShell("3", "cat")
	q.Stdin = true
	e := start(t, r, q)
	<-e.begun
	e.mu.Lock()
	stdin := e.stdin
	e.mu.Unlock()
	var both sync.WaitGroup
	for range 2 {
		both.Add(1)
		go func() {
			defer both.Done()
			_, _ = stdin.Write([]byte("x"))
			_ = stdin.Close()
		}()
	}
	both.Wait()
	if got := wait(t, e); got.Code != 0 || !strings.HasPrefix(got.out, "x") {
		t.Fatalf("%+v", got)
	}
}

func TestNothingRunsInAFolderThatIsNotThere(t *testing.T) {
	r := testRegistry(t)
	q := inShell("1", "echo ran >/dev/stdout")
	q.Cwd = "/no/such/folder"
	if got := run(t, r, q); got.Code != 1 || got.out != "" || !strings.Contains(got.err, "/no/such/folder") || got.ShellEnded {
		t.Fatalf("%+v", got)
	}
	if got := run(t, r, inShell("2", "pwd")); got.out != r.setup.Workspace+"\n" {
		t.Fatalf("%+v", got)
	}
}

func TestShellStartsElsewhereWhenItsFolderIsShut(t *testing.T) {
	r := testRegistry(t)
	run(t, r, inShell("1", "mkdir x; cd x; chmod 0 .; exit"))
	run(t, r, inShell("2", "cd x; exit"))
	if got := run(t, r, inShell("3", "mkdir y; cd y")); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	run(t, r, inShell("4", "chmod 0 .; exit"))
	if got := run(t, r, inShell("5", "pwd")); got.out != r.setup.Workspace+"\n" {
		t.Fatalf("%+v", got)
	}
}

func TestExecEndsWhateverTheShellReports(t *testing.T) {
	r := testRegistry(t)
	if got := run(t, r, inShell("1", "PWD=$(head -c 100000 /dev/zero | tr '\\0' x); (exit 4)")); got.Code != 4 {
		t.Fatalf("%+v", got)
	}
	// A shell that ends while it is told more than a FIFO holds.
	run(t, r, inShell("2", "cd /; readonly A=1; set -e"))
	q := inShell("3", "echo not here")
	q.Env = map[string]string{"A": "2"}
	for i := range 8 {
		q.Env["BIG"+strconv.Itoa(i)] = strings.Repeat("x", 100_000)
	}
	if got := run(t, r, q); got.Code != 1 || !got.ShellEnded || got.out != "" {
		t.Fatalf("%+v", got)
	}
}

func TestQueueOfAShell(t *testing.T) {
	r := testRegistry(t)
	first := start(t, r, inShell("first", "while ! test -e go; do sleep .01; done; echo 1 >>log"))
	second := start(t, r, inShell("second", "echo 2 >>log"))
	if n := second.Kill(); n != 0 {
		t.Fatalf("signalled %d", n)
	}
	if got := wait(t, second); got.Reason != "killed" {
		t.Fatalf("%+v", got)
	}
	third := start(t, r, inShell("third", "echo 3 >>log; cat log"))
	must(t, os.WriteFile(filepath.Join(r.setup.Workspace, "go"), nil, 0o644))
	wait(t, first)
	if got := wait(t, third); got.out != "1\n3\n" {
		t.Fatalf("%+v", got)
	}
	// What has ended is never taken for what runs in its shell now.
	running := start(t, r, inShell("running", "sleep .05; echo whole"))
	<-running.begun
	if n, err := first.Signal(9); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if n := first.Kill(); n != 0 {
		t.Fatal(n)
	}
	if got := wait(t, running); got.out != "whole\n" {
		t.Fatalf("%+v", got)
	}
}

func TestShellIsClosedAtAnyMoment(t *testing.T) {
	r := testRegistry(t)
	for i := range 15 {
		id := strconv.Itoa(i)
		e := start(t, r, inShell("a"+id, "sleep 600"))
		waiting := start(t, r, inShell("b"+id, "sleep 600"))
		if i%3 == 0 {
			<-e.begun
		}
		must(t, r.closeShell("s"))
		for _, e := range []*Exec{e, waiting} {
			if got := wait(t, e); got.Code != 137 && got.Code != 126 {
				t.Fatalf("%+v", got)
			}
		}
	}
	if err := r.closeShell("s"); refused(err) != "not_found" {
		t.Fatal(err)
	}
}

// R6: a kill that comes as a command ends must not reach the command after it.
func TestKillThatComesAsACommandEndsSparesTheNext(t *testing.T) {
	r := testRegistry(t)
	for i := range 300 {
		n := strconv.Itoa(i)
		e := start(t, r, inShell("killed"+n, "builtin :"))
		<-e.begun
		time.Sleep(rand.N(2 * time.Millisecond))
		go e.Kill()
		go func() { _, _ = e.Signal(syscall.SIGKILL) }()
		if got := run(t, r, inShell("next"+n, "sleep .002; echo next")); got.out != "next\n" || got.Code != 0 || got.Reason != "exited" {
			t.Fatalf("round %d: %+v", i, got)
		}
		wait(t, e)
	}
}
