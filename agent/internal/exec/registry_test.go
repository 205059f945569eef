package exec

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandlot.dev/agent/internal/mux"
)

func TestResultsAreKeptWithinBounds(t *testing.T) {
	r := testRegistry(t)
	r.bounds.known = 3
	for i := range 5 {
		run(t, r, Request{ExecID: strconv.Itoa(i), Command: "echo x"})
	}
	for i, known := range []bool{false, false, true, true, true} {
		if _, err := r.Find(strconv.Itoa(i)); (err == nil) != known {
			t.Errorf("%d: %v", i, err)
		}
	}
	if r.done.Len() != 3 || r.kept.Len() != 3 || len(r.execs) != 3 {
		t.Errorf("%d done, %d kept, %d known", r.done.Len(), r.kept.Len(), len(r.execs))
	}
}

func TestOutputIsKeptWithinBounds(t *testing.T) {
	r := testRegistry(t)
	r.maxHeld, r.fitted = 10_000, time.Now().Add(time.Hour)
	for i := range 3 {
		run(t, r, Request{ExecID: strconv.Itoa(i), Command: "head -c 4000 /dev/zero", OutputLimit: 4000})
	}
	for i, want := range []int{0, 4000, 4000} {
		e, err := r.Find(strconv.Itoa(i))
		must(t, err)
		if got := wait(t, e); len(got.out) != want || got.Code != 0 || got.OutputBytes != 4000 {
			t.Errorf("%d: %d bytes, %+v", i, len(got.out), got.Exit)
		}
	}
	if r.heldSum > r.maxHeld {
		t.Errorf("holds %d", r.heldSum)
	}
}

func TestPipesOfChildrenAreHeldWithinBounds(t *testing.T) {
	r := testRegistry(t)
	r.bounds.lingers = 2
	for i := range 4 {
		run(t, r, Request{ExecID: strconv.Itoa(i), Command: "sleep 600 2>/dev/null &"})
	}
	until(t, "two are held", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.lingers.Len() == 2 })
}

// The exit is told only when the exec counts no more: another may be started, and this one forgotten, at once.
func TestExitComesAfterTheBooks(t *testing.T) {
	r := testRegistry(t)
	r.Bind(nil, 1)
	for i := range 30 {
		id := strconv.Itoa(i)
		run(t, r, Request{ExecID: id, Command: ":"})
		must(t, r.Forget(id))
	}
	e := start(t, r, Request{ExecID: "slow", Command: "sleep 600"})
	if _, _, err := r.Start(Request{ExecID: "other", Command: ":"}); refused(err) != "busy" {
		t.Fatal(err)
	}
	if err := r.Forget("slow"); refused(err) != "conflict" {
		t.Fatal(err)
	}
	e.Kill()
	wait(t, e)
	must(t, r.Forget("slow"))
	r.Bind(map[string]string{"A": "bound", "B": "bound"}, 0)
	got := run(t, r, Request{ExecID: "slow", Command: "echo $A $B", Env: map[string]string{"B": "own"}})
	if got.out != "bound own\n" {
		t.Fatalf("%+v", got)
	}
}

func TestNothingLeaks(t *testing.T) {
	r := testRegistry(t)
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(fds)
	}
	run(t, r, Request{ExecID: "first", Command: ":", Shell: "s"})
	before := count()
	for i := range 25 {
		id := strconv.Itoa(i)
		run(t, r, Request{ExecID: "p" + id, Command: "echo $A", Stdin: i%2 == 0})
		run(t, r, Request{ExecID: "n" + id, Argv: []string{"/no/such"}, Stdin: i%2 == 0})
		run(t, r, Request{ExecID: "s" + id, Command: "echo x; (sleep .01; echo y) &", Shell: "s", Stdin: i%2 == 0})
		run(t, r, Request{ExecID: "t" + id, Command: "echo x", Pty: &Pty{}})
	}
	until(t, "as many descriptors as before", func() bool { return count() <= before })
}

func TestRequestsOnTheWire(t *testing.T) {
	r := testRegistry(t)
	l := dial(t, r)
	s, err := l.Open(map[string]any{"op": "exec.start", "exec_id": "cat", "command": "cat; echo end", "stdin": true})
	must(t, err)
	must(t, s.SendData(0, 0, []byte("hello ")))
	must(t, s.SendData(0, 6, []byte("there\n")))
	must(t, s.End())
	var text string
	for {
		item, err := s.Recv()
		if err != nil {
			break
		}
		text += string(item.Payload)
	}
	if want := `"existing":false}hello there` + "\nend\n" + `{"event":"exit","code":0`; !strings.Contains(text, want) {
		t.Fatalf("%q", text)
	}
	for _, c := range []struct {
		request map[string]any
		code    string
	}{
		{map[string]any{"op": "exec.start", "exec_id": 7}, "bad_request"},
		{map[string]any{"op": "exec.start"}, "bad_request"},
		{map[string]any{"op": "exec.attach", "exec_id": "cat", "offset": -1}, "bad_request"},
		{map[string]any{"op": "exec.attach", "exec_id": "none"}, "not_found"},
		{map[string]any{"op": "exec.signal", "exec_id": "cat", "signal": 65}, "bad_request"},
		{map[string]any{"op": "exec.resize", "exec_id": "cat", "rows": 70000}, "bad_request"},
		{map[string]any{"op": "exec.resize", "exec_id": "cat", "rows": 1}, "bad_request"},
		{map[string]any{"op": "bind", "env": map[string]string{"": "x"}}, "bad_request"},
		{map[string]any{"op": "bind"}, ""},
		{map[string]any{"op": "exec.signal", "exec_id": "cat", "signal": 15}, ""},
		{map[string]any{"op": "exec.kill", "exec_id": "cat"}, ""},
		{map[string]any{"op": "shell.close", "name": "none"}, "not_found"},
		{map[string]any{"op": "exec.list"}, ""},
		{map[string]any{"op": "shell.list"}, ""},
		{map[string]any{"op": "exec.forget", "exec_id": "cat"}, ""},
		{map[string]any{"op": "exec.forget", "exec_id": "cat"}, "not_found"},
	} {
		if _, code := ask(t, l, c.request); code != c.code {
			t.Errorf("%v: %q", c.request, code)
		}
	}
}

// What a person wants to know of earlier commands.
func TestAListSaysWhatWhenAndHow(t *testing.T) {
	r := testRegistry(t)
	l := dial(t, r)
	for id, command := range map[string]string{"done": "echo one; exit 3", "long": "exit 0; " + strings.Repeat("\x01é", 400)} {
		s, err := l.Open(map[string]any{"op": "exec.start", "exec_id": id, "command": command})
		must(t, err)
		recvUntil(t, s, `"event":"exit"`)
	}
	s, err := l.Open(map[string]any{"op": "exec.start", "exec_id": "running", "argv": []string{"cat", "-"}, "stdin": true})
	must(t, err)
	recvUntil(t, s, `"pid"`)
	answer, code := ask(t, l, map[string]any{"op": "exec.list"})
	if code != "" {
		t.Fatal(code)
	}
	listed := map[string]map[string]any{}
	for _, one := range answer["execs"].([]any) {
		listed[one.(map[string]any)["exec_id"].(string)] = one.(map[string]any)
	}
	done, long, running := listed["done"], listed["long"], listed["running"]
	if done["command"] != "echo one; exit 3" || done["output_end"] != 4.0 || done["exit_code"] != 3.0 || done["duration_ms"] == nil {
		t.Errorf("%v", done)
	}
	if shown := long["command"].(string); !strings.HasSuffix(shown, "…") || len(shown) > shownBytes+3 {
		t.Errorf("%q", shown)
	}
	if running["command"] != "cat -" || running["exit_code"] != nil || running["started_ms"].(float64) < 1e12 {
		t.Errorf("%v", running)
	}
}

// A reader that leaves only detaches; another goes on where it likes.
func TestReadersComeAndGo(t *testing.T) {
	r := testRegistry(t)
	l := dial(t, r)
	s, err := l.Open(map[string]any{"op": "exec.start", "exec_id": "a", "command": "echo one; read x; echo $x", "stdin": true})
	must(t, err)
	recvUntil(t, s, "one\n")
	s.Reset("cancelled", "")
	s, err = l.Open(map[string]any{"op": "exec.attach", "exec_id": "a", "offset": 2})
	must(t, err)
	recvUntil(t, s, "e\n")
	must(t, s.SendData(0, 0, []byte("two\n")))
	recvUntil(t, s, "two\n")
	recvUntil(t, s, `"event":"exit"`)
}

func recvUntil(t *testing.T, s *mux.Stream, part string) {
	t.Helper()
	for {
		item, err := s.Recv()
		must(t, err)
		if strings.Contains(string(item.Payload), part) {
			return
		}
	}
}

// R3: a small sandbox has no room for the rings of a large one.
func TestRingsFitTheSandboxesMemory(t *testing.T) {
	r := testRegistry(t)
	for _, row := range []struct{ memory, all, held int64 }{
		{32 << 20, 4 << 20, 2 << 20},
		{512 << 20, 64 << 20, 32 << 20},
		{4 << 30, 128 << 20, 48 << 20},
	} {
		r.memory.limit.Store(row.memory)
		r.fitted = time.Time{}
		r.fitRings(time.Now())
		if all, held := r.rings.max.Load(), int64(r.maxHeld); all != row.all || held != row.held {
			t.Errorf("%d MiB: %d and %d bytes", row.memory>>20, all, held)
		}
	}
}
