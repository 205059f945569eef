// sandlot-agent is PID 1 of every sandbox ("init"), and the helpers that work as its user: one touches its files
// ("files"), one carries its connections ("net"). As a command it runs one cell of code ("cell"). Outside of sandboxes
// it copies workspaces ("copy"). In a sandbox of another service it is an ordinary process ("remote"), and another one carries
// its links to the worker ("relay").
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"sandlot.dev/agent/internal/cells"
	"sandlot.dev/agent/internal/copies"
	"sandlot.dev/agent/internal/exec"
	"sandlot.dev/agent/internal/exec/procs"
	"sandlot.dev/agent/internal/files"
	"sandlot.dev/agent/internal/link"
	"sandlot.dev/agent/internal/mux"
	"sandlot.dev/agent/internal/ports"
	"sandlot.dev/agent/internal/relay"
	"sandlot.dev/agent/internal/walls"
)

const (
	socketPath = "/.sandlot/link/host/agent.sock"
	// In a sandbox of another service: below a folder that the worker chose. Only the agent's user may enter it.
	remoteSocket = "link/agent.sock"
	remoteHeld   = "link/agent.held"
	linkFD       = 3 // of a helper
	keeperFD     = 4 // of the net helper
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "files" {
		serveFiles(os.Args[2])
		return
	}
	if len(os.Args) == 2 && os.Args[1] == "net" {
		serveNet()
		return
	}
	if len(os.Args) > 2 && os.Args[1] == "cell" {
		os.Exit(cells.Main(os.Args[2:]))
	}
	if len(os.Args) > 2 && os.Args[1] == "copy" {
		os.Exit(copies.Run(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	if len(os.Args) == 2 && os.Args[1] == "version" {
		fmt.Println(link.Version)
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "relay" {
		serveRelay(os.Args[2])
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "remote" {
		if os.Getuid() != 0 {
			procs.MarkByLimit()
		}
		serveRemote(os.Args[2])
		return
	}
	if len(os.Args) != 2 || os.Args[1] != "init" {
		fmt.Fprintln(os.Stderr, "usage: sandlot-agent init | files WORKSPACE | net | remote FOLDER | relay FOLDER | cell "+cells.Usage+" | copy "+copies.Usage+" | version")
		os.Exit(2)
	}
	serve(socketPath, walls.Harden)
}

func serve(socket string, harden func() error) {
	if err := harden(); err != nil {
		fmt.Fprintln(os.Stderr, "sandlot-agent:", err)
		os.Exit(1) // never run without the walls
	}
	a := &agent{dialer: link.NewDialer(socket), began: time.Now(), keeper: ports.NewKeeper()}
	a.dialer.Forever(a.serve)
}

func serveRemote(folder string) {
	held, err := relay.Hold(filepath.Join(folder, remoteHeld))
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandlot-agent:", err)
		os.Exit(1)
	}
	serve(filepath.Join(folder, remoteSocket), walls.HardenRemote)
	runtime.KeepAlive(held)
}

func serveRelay(folder string) {
	err := relay.Serve(filepath.Join(folder, remoteSocket), filepath.Join(folder, remoteHeld), os.Stdin, os.Stdout, relay.Patience)
	if !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, "sandlot-agent relay:", err)
		os.Exit(1)
	}
}

func serveFiles(workspace string) {
	walls.HideHelper()
	_ = files.Serve(inherited(linkFD), workspace) // the link's end is the helper's, whatever ended it
}

func serveNet() {
	walls.HideHelper()
	_ = ports.Serve(inherited(linkFD), inherited(keeperFD)) // as above
}

// inherited is a connection that PID 1 has handed over.
func inherited(fd uintptr) *net.UnixConn {
	file := os.NewFile(fd, "inherited")
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		os.Exit(1)
	}
	return conn.(*net.UnixConn)
}

type agent struct {
	dialer    *link.Dialer
	began     time.Time
	once      sync.Once
	workspace string
	registry  *exec.Registry
	keeper    *ports.Keeper
	opening   sync.Mutex // one link of a helper is made at a time
}

// settle is done at first contact, before any command runs.
func (a *agent) settle(setup *link.Setup) {
	if os.Getuid() == 0 {
		a.own(setup)
	}
	a.workspace = setup.Workspace
	a.registry = exec.NewRegistry(*setup, os.Environ())
}

func (a *agent) own(setup *link.Setup) {
	if err := walls.Own(setup.Workspace, int(setup.UID), int(setup.GID)); err != nil {
		fmt.Fprintln(os.Stderr, "sandlot-agent: the workspace cannot be given to its user:", err)
		os.Exit(1) // with it goes the sandbox; nobody has it yet
	}
}

// serve is one core link's life.
func (a *agent) serve(conn *net.UnixConn, setup *link.Setup) {
	a.once.Do(func() { a.settle(setup) })
	ops := a.registry.Ops()
	ops["info"] = a.info
	ops["files.open"] = a.openFiles
	ops["net.open"] = a.openNet
	l := mux.New(conn, mux.Agent, func(s *mux.Stream) {
		procs.Hurry()
		var q struct {
			Op string `json:"op"`
		}
		if err := json.Unmarshal(s.Request(), &q); err != nil {
			s.Reset("bad_request", err.Error())
			return
		}
		var err error
		if serve := ops[q.Op]; serve != nil {
			err = serve(s)
		} else {
			s.Reset("unsupported", "no such operation: "+q.Op)
		}
		if refusal, ok := err.(*exec.Refusal); ok {
			s.Reset(refusal.Code, refusal.Message)
		} else if err != nil {
			s.Reset("internal", err.Error())
		}
	})
	_ = l.Run() // whatever ended it, the next thing is to dial again
}

func (a *agent) info(s *mux.Stream) error {
	running, known, processes, used, limit, kills := a.registry.Numbers()
	s.Reply(map[string]any{
		"agent": link.Version, "protocol": [2]int{link.Major, link.Minor}, "boot": a.dialer.Boot,
		"uptime_ms": time.Since(a.began).Milliseconds(), "execs_running": running, "execs_known": known, "processes": processes,
		"memory": map[string]int64{"used_bytes": used, "limit_bytes": limit, "oom_kills": kills},
	})
	return nil
}

// openFiles gives the worker a link to a helper that touches files.
func (a *agent) openFiles(s *mux.Stream) error {
	return a.openHelper(s, link.RoleFiles, nil, a.workspace)
}

// openNet gives the worker a link to a helper that carries connections, and the helper a way to borrow listening
// sockets, since PID 1 keeps them.
func (a *agent) openNet(s *mux.Stream) error {
	return a.openHelper(s, link.RoleNet, a.keeper.Lend)
}

// openHelper connects a link in the given role and hands it, with what lend returns, to a helper that runs as the
// sandbox user.
func (a *agent) openHelper(s *mux.Stream, role string, lend func() (*os.File, error), arguments ...string) error {
	a.opening.Lock()
	defer a.opening.Unlock()
	conn, _, err := a.dialer.Dial(role)
	if err != nil {
		return &exec.Refusal{Code: "interrupted", Message: "the " + role + " link could not be dialled: " + err.Error()}
	}
	defer conn.Close()
	if err := a.startHelper(conn, role, lend, arguments); err != nil {
		message := "the helper of the " + role + " link could not be started: " + err.Error()
		return &exec.Refusal{Code: "resource_exhausted", Message: message}
	}
	s.Reply(struct{}{})
	return nil
}

func (a *agent) startHelper(conn *net.UnixConn, role string, lend func() (*os.File, error), arguments []string) error {
	file, err := conn.File()
	if err != nil {
		return err
	}
	defer file.Close()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	path, err := os.Executable()
	if err != nil {
		return err
	}
	descriptors := []uintptr{null.Fd(), null.Fd(), null.Fd(), file.Fd()}
	if lend != nil {
		lent, err := lend()
		if err != nil {
			return err
		}
		defer lent.Close()
		descriptors = append(descriptors, lent.Fd())
	}
	return a.registry.StartHelper(path, append([]string{"sandlot-agent", role}, arguments...), descriptors, func() {})
}
