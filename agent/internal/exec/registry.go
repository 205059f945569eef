// Package exec runs commands: one exec has an id, a ring of output, and one exit, and outlives every connection.
package exec

import (
	"container/list"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"sandlot.dev/agent/internal/exec/procs"
	"sandlot.dev/agent/internal/link"
	"sandlot.dev/agent/internal/walls"
)

const defaultMaxExecs = 256

// bounds of what a registry keeps.
type bounds struct {
	known     int   // results, without output
	ringBytes int   // output of finished execs, all together
	allRings  int64 // output of all execs; beyond it output is dropped as beyond an exec's own limit
	lingers   int   // pipes held open for children in the background
}

var defaultBounds = bounds{known: 10_000, ringBytes: 48 << 20, allRings: 128 << 20, lingers: 512}

// Of the sandbox's memory, output may take at most these parts: the rest is for commands and for the agent itself.
const (
	ringsPart    = 8
	finishedPart = 16
	heapPart     = 4 // of the Go runtime, which then collects harder
	leastHeap    = 8 << 20
	limitIsFresh = time.Second // a session may change its limits; asking the kernel for each exec would cost 20 µs
)

// Refusal is an answer for the worker: a RESET code and why.
type Refusal struct{ Code, Message string }

func (r *Refusal) Error() string { return r.Code + ": " + r.Message }

func refuse(code, message string) error { return &Refusal{code, message} }

// Exec is one command run.
type Exec struct {
	request Request
	sum     [32]byte
	shown   string // its command, shortened, for lists
	started time.Time
	ring    *ring
	begun   chan struct{} // closed when it runs, or has ended without running
	disks   disksBefore

	mu        sync.Mutex
	pid       int
	tag       uint32
	reason    string // why it is being ended, if it is
	oom       bool
	stdin     io.WriteCloser
	terminal  *os.File
	over      bool           // the command has ended in its shell: no signal may reach what the shell runs next
	ending    sync.WaitGroup // signals under way
	finished  bool
	cancel    func()        // ends it; set once it runs
	cancelled chan struct{} // made when cancel is called, closed when it has done its work
	place     *list.Element // in done and in kept, under the registry's lock
	output    *list.Element
	held      int
}

// Registry holds every exec of the sandbox.
type Registry struct {
	setup  link.Setup
	reaper *reaper
	memory *memory
	bounds bounds
	rings  budget
	base   []string // environment that the image gives
	bash   string   // empty when the image has none
	sh     string

	mu       sync.Mutex
	env      map[string]string
	maxExecs int
	running  int
	starts   uint64
	nextTag  uint32
	execs    map[string]*Exec
	done     *list.List // finished ones, oldest first
	kept     *list.List // those of them whose output is held
	heldSum  int
	shells   map[string]*shell
	lingers  *list.List
	fitted   time.Time // when the rings' bounds were last compared with the sandbox's memory
	maxHeld  int       // output of finished execs, all together
}

// NewRegistry may be called once in a process: its reaper waits for every child.
func NewRegistry(setup link.Setup, environ []string) *Registry {
	return newRegistry(setup, environ, newReaper())
}

func newRegistry(setup link.Setup, environ []string, reaper *reaper) *Registry {
	r := &Registry{
		setup: setup, reaper: reaper, bounds: defaultBounds, base: environ, env: map[string]string{}, maxExecs: defaultMaxExecs,
		nextTag: procs.FirstTag, execs: map[string]*Exec{}, done: list.New(), kept: list.New(), shells: map[string]*shell{}, lingers: list.New(),
	}
	r.bash = firstFile("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")
	r.sh = firstFile("/bin/sh", "/usr/bin/sh", "/bin/busybox")
	r.memory = &memory{onVictim: r.markOOM, wake: make(chan struct{}, 1)}
	r.memory.limit.Store(setup.MemoryBytes)
	r.fitRings(time.Now())
	if os.Getpid() == 1 { // elsewhere the processes and the memory are not ours to watch
		go r.memory.watch(func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.running > 0 })
	}
	return r
}

func firstFile(paths ...string) string {
	for _, path := range paths {
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
			return path
		}
	}
	return ""
}

// Bind sets the environment of later execs and shells.
func (r *Registry) Bind(env map[string]string, maxExecs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.env = env
	if maxExecs > 0 {
		r.maxExecs = maxExecs
	}
}

// Start begins the exec, or finds it if its id is known.
func (r *Registry) Start(q Request) (e *Exec, existing bool, err error) {
	if err := q.check(); err != nil {
		return nil, false, refuse("bad_request", err.Error())
	}
	sum := q.sum()
	r.mu.Lock()
	if e := r.execs[q.ExecID]; e != nil {
		r.mu.Unlock()
		if e.sum != sum {
			return nil, false, refuse("conflict", "this exec_id was used for another command")
		}
		return e, true, nil
	}
	r.fitRings(time.Now())
	if r.running >= r.maxExecs {
		r.mu.Unlock()
		return nil, false, refuse("busy", "too many execs are running")
	}
	e = &Exec{
		request: q, sum: sum, shown: q.shown(), started: time.Now(), ring: newRing(q.OutputLimit, &r.rings),
		begun: make(chan struct{}), disks: r.lookAtDisks(),
	}
	if q.OnLimit == "kill" { // there is no end to keep: the limit is where the command is ended
		e.ring.head = q.OutputLimit
	}
	r.execs[q.ExecID] = e
	r.running++
	r.mu.Unlock()
	r.memory.poke()

	if q.Shell != "" {
		err = r.startInShell(e)
	} else {
		err = r.startProcess(e)
	}
	if err != nil {
		// It never ran: the id stays free, so that asking again is right.
		r.mu.Lock()
		delete(r.execs, q.ExecID)
		r.running--
		r.mu.Unlock()
		close(e.begun)
		e.ring.finish(&Exit{Event: "exit", Code: 126, Reason: "start_failed", Error: err.Error()})
		return nil, false, err
	}
	return e, false, nil
}

func (r *Registry) Find(id string) (*Exec, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.execs[id]; e != nil {
		return e, nil
	}
	return nil, refuse("not_found", "no exec with this id")
}

// Forget drops a finished exec.
func (r *Registry) Forget(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.execs[id]
	if e == nil {
		return refuse("not_found", "no exec with this id")
	}
	if e.place == nil {
		return refuse("conflict", "it is still running")
	}
	r.drop(e)
	return nil
}

// ended files a finished exec and keeps the whole within bounds.
func (r *Registry) ended(e *Exec) {
	held := e.ring.held()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running--
	// The sum is enough to know the request again; its text would only take room.
	e.request.Command, e.request.Argv, e.request.Env = "", nil, nil
	e.place = r.done.PushBack(e)
	if held > 0 {
		e.held, e.output = held, r.kept.PushBack(e)
		r.heldSum += held
	}
	for r.heldSum > r.maxHeld {
		r.dropOutput(r.kept.Front().Value.(*Exec))
	}
	for r.done.Len() > r.bounds.known {
		r.drop(r.done.Front().Value.(*Exec))
	}
}

// fitRings bounds output by the sandbox's memory. In the lock, or before anybody else has the registry.
func (r *Registry) fitRings(now time.Time) {
	if now.Sub(r.fitted) < limitIsFresh {
		return
	}
	r.fitted = now
	r.maxHeld = r.bounds.ringBytes
	all := r.bounds.allRings
	if limit := r.memory.limitBytes(); limit > 0 {
		r.maxHeld = min(r.maxHeld, int(limit/finishedPart))
		all = min(all, limit/ringsPart)
		debug.SetMemoryLimit(min(walls.MemoryLimit, max(leastHeap, limit/heapPart)))
	}
	r.rings.max.Store(all)
}

func (r *Registry) dropOutput(e *Exec) {
	if e.output == nil {
		return
	}
	r.kept.Remove(e.output)
	r.heldSum -= e.held
	e.held, e.output = 0, nil
	e.ring.forget()
}

func (r *Registry) drop(e *Exec) {
	r.dropOutput(e)
	r.done.Remove(e.place)
	delete(r.execs, e.request.ExecID)
}

// credential is the sandbox user's, with tags as groups; nil if the agent itself runs as that user and can set none.
func (r *Registry) credential(tags ...uint32) *syscall.Credential {
	if os.Getuid() != 0 {
		return nil
	}
	return &syscall.Credential{Uid: r.setup.UID, Gid: r.setup.GID, Groups: append([]uint32{r.setup.GID}, tags...)}
}

func (r *Registry) newTag() uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nextTag++
	return r.nextTag
}

func (r *Registry) markOOM(tags []uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.execs {
		e.mu.Lock()
		for _, tag := range tags {
			if e.tag == tag && !e.finished {
				e.oom = true
			}
		}
		e.mu.Unlock()
	}
}

// linger keeps a pipe that a background child holds, within a bound: the oldest is closed for a new one.
func (r *Registry) linger(c io.Closer) (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lingers.Len() >= r.bounds.lingers {
		r.lingers.Remove(r.lingers.Front()).(io.Closer).Close()
	}
	el := r.lingers.PushBack(c)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.lingers.Remove(el)
	}
}

// environ is the image's environment, the user's own variables, what was bound, and what the exec asks for.
func (r *Registry) environ(own map[string]string, cwd, term string) []string {
	values := map[string]string{}
	for _, pair := range r.base {
		name, value, _ := strings.Cut(pair, "=")
		values[name] = value
	}
	values["HOME"], values["USER"], values["LOGNAME"] = r.setup.Home, r.setup.User, r.setup.User
	values["PWD"], values["TERM"] = cwd, term
	delete(values, "HOSTNAME")
	if values["PATH"] == "" {
		values["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	r.mu.Lock()
	for name, value := range r.env {
		values[name] = value
	}
	r.mu.Unlock()
	for name, value := range own {
		values[name] = value
	}
	list := make([]string, 0, len(values))
	for name, value := range values {
		list = append(list, name+"="+value)
	}
	return list
}

// finish is called once, when the command has ended and its output is in the ring.
func (r *Registry) finish(e *Exec, exit *Exit, began time.Time, oomBefore int64) {
	e.mu.Lock()
	e.finished = true
	exit.Event = "exit"
	exit.DurationMS = float64(time.Since(began).Microseconds()) / 1000
	exit.OOM = e.oom || (!r.memory.watches() && r.memory.kills() > oomBefore)
	if e.reason != "" {
		exit.Reason = e.reason
	} else if exit.OOM && exit.Signal == 9 {
		exit.Reason = "oom"
	}
	stdin, terminal := e.stdin, e.terminal
	e.stdin, e.terminal = nil, nil
	e.mu.Unlock()
	if stdin != nil && stdin != io.WriteCloser(terminal) {
		stdin.Close()
	}
	exit.DiskFull = exit.Code != 0 && r.metFullDisk(e)
	r.ended(e) // first: who reads the exit may at once start another, or forget this one
	e.ring.finish(exit)
}
