package ports

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"sandlot.dev/agent/internal/mux"
)

func TestOnlyLoopbackIsListenedOn(t *testing.T) {
	c := start(t)
	for _, address := range []string{
		"0.0.0.0:0", ":0", "[::]:0", "8.8.8.8:53", "example.com:80", "127.0.0.1", "", "127.0.0.1.example:1",
		"[::ffff:127.0.0.1]:0", "[::1%lo]:0", "127.0.0.1:65536", "localhost:", "localhost:http",
	} {
		c.want("bad_request", c.do(fields{"op": "port.listen", "address": address}))
	}
	c.want("bad_request", c.do(fields{"op": "port.listen", "address": 7}))
	c.want("unsupported", c.do(fields{"op": "exec.start"}))
	_, bound := c.listen("localhost:0")
	if address, err := loopback(bound); err != nil || address.Port() == 0 {
		t.Fatal(bound, err)
	}
}

func TestAddressOfSomebodyElseIsAConflict(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer other.Close()
	c := start(t)
	c.want("conflict", c.do(fields{"op": "port.listen", "address": other.Addr().String()}))
}

func TestListenersAreBounded(t *testing.T) {
	c := start(t)
	for range maxListeners {
		c.listen("127.0.0.1:0")
	}
	c.want("resource_exhausted", c.do(fields{"op": "port.listen", "address": "127.0.0.1:0"}))
}

func TestConnectionIsCarriedBothWays(t *testing.T) {
	c := start(t)
	_, bound := c.listen("127.0.0.1:0")
	conn := came(t, bound)
	s := c.accepted()
	if _, err := conn.Write([]byte("request")); err != nil {
		t.Fatal(err)
	}
	must(t, conn.CloseWrite())
	if got := c.want("", c.gather(s)); string(got.data) != "request" {
		t.Fatalf("%q", got.data)
	}
	must(t, s.SendData(0, 0, []byte("answer"))) // half-closed: the answer can still go back
	must(t, s.End())
	if answer, err := io.ReadAll(conn); err != nil || string(answer) != "answer" {
		t.Fatalf("%q %v", answer, err)
	}
}

// A peer inside that neither reads nor writes must not outlive its stream, or it would hold the agent's descriptors.
func TestStalledConnectionEndsWithItsStream(t *testing.T) {
	c := start(t)
	_, bound := c.listen("127.0.0.1:0")
	conn := came(t, bound)
	s := c.accepted()
	full := make(chan struct{})
	go func() { // more than the kernel's buffers and the window hold
		defer close(full)
		_ = s.SendData(0, 0, make([]byte, 32<<20))
	}()
	select {
	case <-full:
		t.Fatal("somebody took it all")
	case <-time.After(100 * time.Millisecond):
	}
	s.Reset("cancelled", "")
	<-full
	if _, err := io.Copy(io.Discard, conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the connection goes on, or ended well: %v", err)
	}
}

func TestListenerEndsWithItsStream(t *testing.T) {
	c := start(t)
	for _, end := range []func(*mux.Stream){
		func(s *mux.Stream) { must(t, s.End()) },
		func(s *mux.Stream) { s.Reset("cancelled", "") },
	} {
		s, bound := c.listen("127.0.0.1:0")
		end(s)
		_, _ = s.Recv()
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			conn, err := net.Dial("tcp", bound)
			if err != nil {
				break
			}
			conn.Close()
			if time.Now().After(deadline) {
				t.Fatal("still listens")
			}
		}
	}
}

func TestNewStreamTakesTheListenerOver(t *testing.T) {
	c := start(t)
	former, bound := c.listen("127.0.0.1:0")
	s, again := c.listen(bound)
	if again != bound {
		t.Fatal(again)
	}
	c.want("conflict", c.gather(former))
	conn := came(t, bound)
	must(t, c.accepted().SendData(0, 0, []byte("x")))
	if n, err := conn.Read(make([]byte, 10)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	must(t, s.End())
}

// The link breaks, and with it the helper ends. What connects meanwhile waits for the next one.
func TestListenerOutlivesItsLink(t *testing.T) {
	c := start(t)
	_, bound := c.listen("127.0.0.1:0")
	open := came(t, bound)
	c.accepted()
	c.hangUp()
	if _, err := io.ReadAll(open); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("what was open ended by %v", err)
	}
	waiting := came(t, bound)
	if _, err := waiting.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	next := dial(t, c.keeper)
	s, again := next.listen(bound)
	if again != bound {
		t.Fatal(again)
	}
	item, err := next.accepted().Recv()
	if err != nil || string(item.Payload) != "hello" {
		t.Fatal(item, err)
	}
	must(t, s.End())
	next.gather(s)
	if conn, err := net.Dial("tcp", bound); err == nil {
		conn.Close()
		t.Fatal("closed, and kept all the same")
	}
}

// TestHelperProcess is no test: the next test starts it as a helper in a process of its own.
func TestHelperProcess(t *testing.T) {
	if os.Getenv("SANDLOT_TEST_HELPER") == "" {
		t.Skip("a process of TestKilledHelperBreaksConnectionsOff")
	}
	conn, err := unixConn(os.NewFile(3, "link"))
	must(t, err)
	keeper, err := unixConn(os.NewFile(4, "keeper"))
	must(t, err)
	_ = Serve(conn, keeper)
}

// An answer that is cut short must not look complete, even if the user kills the helper.
func TestKilledHelperBreaksConnectionsOff(t *testing.T) {
	keeper := NewKeeper()
	defer keeper.close()
	lent, err := keeper.Lend()
	must(t, err)
	ours, theirs := socketpair(t)
	file, err := theirs.(*net.UnixConn).File()
	must(t, err)
	theirs.Close()
	helper := exec.Command(os.Args[0], "-test.run=^TestHelperProcess$")
	helper.Env, helper.ExtraFiles = []string{"SANDLOT_TEST_HELPER=1"}, []*os.File{file, lent}
	must(t, helper.Start())
	file.Close()
	lent.Close()
	c := &client{t: t, opened: make(chan *mux.Stream, 1)}
	c.link = mux.New(ours, mux.Worker, func(s *mux.Stream) { c.opened <- s; <-s.Done() })
	go func() { _ = c.link.Run() }()
	defer c.link.Close()
	_, bound := c.listen("127.0.0.1:0")
	conn := came(t, bound)
	must(t, c.accepted().SendData(0, 0, []byte("half of an answer")))
	if n, err := conn.Read(make([]byte, 100)); n == 0 || err != nil {
		t.Fatal(n, err)
	}
	must(t, helper.Process.Kill())
	_ = helper.Wait() // it was killed
	if n, err := conn.Read(make([]byte, 100)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(n, err)
	}
	waiting := came(t, bound) // the keeper has the socket
	defer waiting.Close()
}

// A worker that is frozen keeps its link. Its helper must not take the connections of the next one's.
func TestNewHelperEndsTheFormer(t *testing.T) {
	c := start(t)
	c.listen("127.0.0.1:0")
	next := dial(t, c.keeper)
	select {
	case <-c.link.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the former helper goes on")
	}
	next.listen("127.0.0.1:0")
}

func TestAcceptedConnectionsAreBounded(t *testing.T) {
	defer func(n int) { connectionLimit = n }(connectionLimit)
	connectionLimit = 3
	c := start(t)
	_, first := c.listen("127.0.0.1:0")
	_, second := c.listen("127.0.0.1:0")
	var streams []*mux.Stream
	for n := range 3 {
		came(t, []string{first, second}[n%2])
		streams = append(streams, c.accepted())
	}
	came(t, first)
	came(t, second)
	select {
	case <-c.opened:
		t.Fatal("one too many")
	case <-time.After(100 * time.Millisecond):
	}
	streams[0].Reset("cancelled", "")
	c.accepted()
	streams[1].Reset("cancelled", "")
	c.accepted()
}

// User code may have taken over a helper: what it says to PID 1 is refused, or costs it its helper.
func TestKeeperTakesNothingForGranted(t *testing.T) {
	keeper := NewKeeper()
	defer keeper.close()
	lent, err := keeper.Lend()
	must(t, err)
	helper, err := unixConn(lent)
	must(t, err)
	defer helper.Close()
	before := openFds(t)
	null, err := os.Open("/dev/null")
	must(t, err)
	defer null.Close()
	for _, said := range []string{"x", `{"address":"0.0.0.0:80"}`, `{"address":"127.0.0.1:9","close":true}`, `{"address":[]}`} {
		_, _, err := helper.WriteMsgUnix([]byte(said), syscall.UnixRights(int(null.Fd())), nil)
		must(t, err)
		buf, rights := make([]byte, maxAsked), make([]byte, 64)
		n, m, _, _, err := helper.ReadMsgUnix(buf, rights)
		must(t, err)
		var got answered
		must(t, json.Unmarshal(buf[:n], &got))
		if m != 0 || (got.Code != "bad_request" && said != `{"address":"127.0.0.1:9","close":true}`) {
			t.Errorf("%s: %d bytes of rights, %+v", said, m, got)
		}
	}
	if now := openFds(t); now > before+1 {
		t.Errorf("%d descriptors, %d before", now, before)
	}
}

// A port can be forwarded elsewhere at once: the next request must find the address free, or take the listener over.
func TestAddressIsFreeOnceItsStreamHasEnded(t *testing.T) {
	c := start(t)
	s, bound := c.listen("127.0.0.1:0")
	for range 200 {
		must(t, s.End())
		_, _ = s.Recv()
		if s, _ = c.listen(bound); t.Failed() {
			return
		}
	}
}
