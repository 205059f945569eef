package exec

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandlot.dev/agent/internal/exec/procs"
	"sandlot.dev/agent/internal/link"
	"sandlot.dev/agent/internal/mux"
)

const (
	nobody  = 65534
	patient = 10 * time.Second // what takes longer hangs
)

// sharedReaper: there can be one in a process, as in the agent. Orphans come to it, as they come to PID 1.
var sharedReaper = sync.OnceValue(func() *reaper {
	const prSetChildSubreaper = 36
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0) // without it init has them, which does too
	return newReaper()
})

// testRegistry runs commands as nobody in folders of its own.
func testRegistry(t *testing.T) *Registry {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: every exec is given a group of its own")
	}
	root, err := os.MkdirTemp("", "sandlot-exec-")
	if err != nil {
		t.Fatal(err)
	}
	workspace, run := filepath.Join(root, "workspace"), filepath.Join(root, "run")
	must(t, os.Chmod(root, 0o711))
	must(t, os.Mkdir(workspace, 0o755))
	must(t, os.Chown(workspace, nobody, nobody))
	must(t, os.Mkdir(run, 0o711))
	r := newRegistry(link.Setup{UID: nobody, GID: nobody, User: "nobody", Home: workspace, Workspace: workspace, RunDir: run},
		[]string{"PATH=/usr/local/bin:/usr/bin:/bin"}, sharedReaper())
	// Sandboxes may run on this machine and number theirs from procs.FirstTag on: never touch those.
	first := procs.FirstTag + (1+rand.Uint32N(1<<17))<<12
	r.nextTag = first
	t.Cleanup(func() {
		r.mu.Lock()
		last := r.nextTag
		r.mu.Unlock()
		for _, p := range procs.Scan(0) {
			for _, tag := range p.Tags {
				if tag > first && tag <= last {
					procs.Kill(tag)
				}
			}
		}
		if left, err := os.ReadDir(run); err != nil || (len(left) > 0 && len(r.shells) == 0) {
			t.Errorf("left in the run folder: %v %v", left, err)
		}
		must(t, os.RemoveAll(root))
	})
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until waits for something that other processes bring about.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patient); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

type result struct {
	Exit
	out, err string
}

func start(t *testing.T, r *Registry, q Request) *Exec {
	t.Helper()
	e, existing, err := r.Start(q)
	if err != nil || existing {
		t.Fatalf("%s: existing=%v, %v", q.ExecID, existing, err)
	}
	return e
}

func wait(t *testing.T, e *Exec) result {
	t.Helper()
	rd := e.ring.attach(0)
	defer rd.detach()
	stop := time.AfterFunc(patient, rd.detach)
	defer stop.Stop()
	var res result
	buf := make([]byte, 4096)
	for {
		channel, _, n, exit, ok := rd.next(buf)
		switch {
		case !ok:
			t.Fatalf("%s does not end", e.request.ExecID)
		case exit != nil:
			res.Exit = *exit
			return res
		case channel == 1:
			res.out += string(buf[:n])
		default:
			res.err += string(buf[:n])
		}
	}
}

func run(t *testing.T, r *Registry, q Request) result {
	t.Helper()
	return wait(t, start(t, r, q))
}

func refused(err error) string {
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return refusal.Code
	}
	return ""
}

// dial connects a worker to the registry's operations.
func dial(t *testing.T, r *Registry) *mux.Link {
	t.Helper()
	a, b := net.Pipe()
	ops := r.Ops()
	agent := mux.New(b, mux.Agent, func(s *mux.Stream) {
		var q struct{ Op string }
		if err := json.Unmarshal(s.Request(), &q); err != nil {
			s.Reset("bad_request", err.Error())
			return
		}
		var refusal *Refusal
		if err := ops[q.Op](s); errors.As(err, &refusal) {
			s.Reset(refusal.Code, refusal.Message)
		}
	})
	worker := mux.New(a, mux.Worker, func(*mux.Stream) {})
	go func() { _ = agent.Run() }()
	go func() { _ = worker.Run() }()
	t.Cleanup(func() { worker.Close(); agent.Close() })
	return worker
}

// ask makes a one-answer request; code is the reset's, if it was refused.
func ask(t *testing.T, l *mux.Link, request map[string]any) (answer map[string]any, code string) {
	t.Helper()
	s, err := l.Open(request)
	must(t, err)
	must(t, s.End())
	item, err := s.Recv()
	var reset *mux.ResetError
	if errors.As(err, &reset) {
		return nil, reset.Code
	}
	must(t, err)
	must(t, json.Unmarshal(item.Payload, &answer))
	return answer, ""
}
