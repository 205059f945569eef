package files

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sandlot.dev/agent/internal/files/paths"
	"sandlot.dev/agent/internal/frame"
)

// confined says whether a request stays in its workspace by what it asks: the fuzzer has the rights of whoever
// runs it, and must not be let loose on that one's files and ports.
func confined(request []byte) bool {
	var q struct {
		Op          string
		Network     string
		Path        paths.Path
		Source      paths.Path
		Destination paths.Path
	}
	if !json.Valid(request) {
		return true
	}
	if json.Unmarshal(request, &q) != nil || q.Op == "port.connect" {
		return false
	}
	for _, p := range []paths.Path{q.Path, q.Source, q.Destination} {
		if strings.HasPrefix(string(p), "/") || slices.Contains(strings.Split(string(p), "/"), "..") {
			return false
		}
	}
	return true
}

// FuzzRequest sends an arbitrary request with arbitrary data. Whatever they are, the helper lives, the stream ends,
// and nothing outside the workspace has changed.
func FuzzRequest(f *testing.F) {
	archive := tarOf(f, file("a/b", "x"), link("l", "../.."), hard("h", "a/b"))
	for op := range operations {
		f.Add([]byte(`{"op":"`+op+`","path":"d","pattern":"x","glob":"**/*","recursive":true,"mode":511}`), archive, uint16(700))
	}
	f.Add([]byte(`{"op":"file.move","source":"d","destination":"e","overwrite":true}`), []byte{}, uint16(1))
	f.Add([]byte(`{"op":"file.stat","path":"\udcff"}`), []byte{}, uint16(1))
	f.Add([]byte(`{"op":"file.read","path":"d/f","offset":9223372036854775807,"length":9223372036854775807,"max_bytes":1}`), []byte{}, uint16(1))
	f.Add([]byte(`[[`), []byte{}, uint16(1))
	f.Fuzz(func(t *testing.T, request, data []byte, cut uint16) {
		open := frame.Frame{Stream: 1, Kind: frame.Open, Payload: request}
		if !confined(request) || frame.Check(open) != nil || len(request) > frame.MaxPayload || len(data) > 200000 {
			return
		}
		top := t.TempDir()
		workspace := filepath.Join(top, "w")
		must(t, os.MkdirAll(filepath.Join(workspace, "d"), 0o755))
		must(t, os.WriteFile(filepath.Join(workspace, "d/f"), []byte("x\ny\n"), 0o644))
		must(t, os.WriteFile(filepath.Join(top, "outside"), []byte("outside"), 0o644))
		a, b := socketpair(t)
		served := make(chan error, 1)
		go func() { served <- Serve(b, workspace) }()
		converse(t, a, request, data, int(cut))
		a.Close()
		<-served
		names, err := os.ReadDir(top)
		must(t, err)
		content, err := os.ReadFile(filepath.Join(top, "outside"))
		if err != nil || string(content) != "outside" || len(names) > 2 {
			t.Errorf("outside was touched: %v, %q, %v", names, content, err)
		}
		left, _ := os.ReadDir(workspace)
		for _, n := range left {
			if strings.HasPrefix(n.Name(), temporary) && !strings.Contains(string(request), temporary) {
				t.Errorf("%s is left", n.Name())
			}
		}
	})
}

// converse sends raw frames, which the mux's own client would not, and reads until the stream has ended.
func converse(t *testing.T, conn net.Conn, request, data []byte, cut int) {
	out := frame.Append(nil, 1, frame.Open, nil, request)
	offset := 0
	for piece := range slices.Chunk(data, min(max(cut, 1), 60000)) {
		if len(out) > 200000 { // more would be beyond the first credit
			break
		}
		head := []byte{0, 0, 0, 0, 0, byte(offset >> 24), byte(offset >> 16), byte(offset >> 8), byte(offset)}
		out = frame.Append(out, 1, frame.Data, head, piece)
		offset += len(piece)
	}
	out = frame.Append(out, 1, frame.End, nil, nil)
	go func() { _, _ = conn.Write(out) }()
	must(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	for {
		f, err := frame.Read(conn)
		if err == io.EOF {
			t.Error("the link ended before the stream")
			return
		}
		must(t, err)
		if f.Kind == frame.End || f.Kind == frame.Reset {
			return
		}
	}
}
