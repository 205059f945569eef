package cells

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// bridge answers one connection with what it is told to, and hands over the request that came.
func bridge(t *testing.T, answer string) (socket string, requests chan request) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	requests = make(chan request, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		line, _ := bufio.NewReader(conn).ReadBytes('\n')
		var q request
		_ = json.Unmarshal(line, &q)
		requests <- q
		_, _ = conn.Write([]byte(answer))
	}()
	return socket, requests
}

func TestEventsAreCopiedAndTheStatusIsTheBridges(t *testing.T) {
	long := `{"type":"stdout","text":"` + strings.Repeat("x", 3*bufferBytes) + `"}` + "\n"
	for answer, want := range map[string]int{
		long + "=0\n":     OK,
		long + "{}\n=1\n": Raised,
		"=3\n":            Died,
		"{}\n=77\n":       Died, // no status of ours
		"{}\n=" + strings.Repeat("1", 2*bufferBytes): Died,
	} {
		socket, requests := bridge(t, answer)
		var out bytes.Buffer
		if got := ask(socket, request{Op: "run", Context: "python", Code: "1+1"}, &out); got != want {
			t.Errorf("status %d, not %d", got, want)
		}
		if events, _, _ := strings.Cut(answer, "="); out.String() != events {
			t.Errorf("copied %d bytes of %d", out.Len(), len(events))
		}
		if q := <-requests; q.Code != "1+1" || q.Context != "python" {
			t.Errorf("asked %+v", q)
		}
	}
}

func TestABridgeThatGoesAwayIsADeadKernel(t *testing.T) {
	for _, answer := range []string{"", "{}\n", `{"type":"stdout","te`} {
		socket, _ := bridge(t, answer)
		var out bytes.Buffer
		if got := ask(socket, request{}, &out); got != Died {
			t.Errorf("status %d", got)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		var event map[string]any
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &event); err != nil || event["name"] != "KernelDied" {
			t.Errorf("the last line is %q", lines[len(lines)-1])
		}
	}
	var out bytes.Buffer
	if got := ask(filepath.Join(t.TempDir(), "none"), request{}, &out); got != Died {
		t.Errorf("no bridge: status %d", got)
	}
}

func TestVariablesOfTheCellAreToldFromTheSessions(t *testing.T) {
	session, cell := split([]string{"A=1", "B=x=y", "C=", own + "=B,C,,missing"})
	if want := map[string]string{"A": "1"}; !reflect.DeepEqual(session, want) {
		t.Errorf("session %v", session)
	}
	if want := map[string]string{"B": "x=y", "C": ""}; !reflect.DeepEqual(cell, want) {
		t.Errorf("cell %v", cell)
	}
}

func TestCodeThatIsTooLongIsRefused(t *testing.T) {
	var out bytes.Buffer
	if got := Run([]string{"python", "python"}, nil, strings.NewReader(strings.Repeat("x", maxCode+1)), &out); got != Raised {
		t.Errorf("status %d: %s", got, out.String())
	}
	if got := Run([]string{"python"}, nil, nil, &out); got != badUsage {
		t.Errorf("status %d without a language", got)
	}
}
