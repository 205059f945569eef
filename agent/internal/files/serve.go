// Package files serves the `files` link: file operations and archives, as docs/reference/agent-protocol.md says. It
// runs in a helper process under the sandbox user's id and without capabilities, so the kernel decides what a request may touch; the care taken here is for correctness under user
// code that swaps links and folders meanwhile, and for memory: whatever a folder, file or tar holds, what is kept
// of it is bounded by a constant.
package files

import (
	"encoding/json"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/paths"
	"sandlot.dev/agent/internal/mux"
)

// graceOnEnd is how long Serve waits for operations to remove their temporary files.
const graceOnEnd = 10 * time.Second

// call is one request being served.
type call struct {
	stream    *mux.Stream
	workspace string
}

// operations maps each op to what serves it. An error that is returned becomes the stream's RESET.
var operations = map[string]func(*call) error{
	"file.stat":     (*call).stat,
	"file.list":     (*call).list,
	"file.walk":     (*call).walk,
	"file.read":     (*call).read,
	"file.write":    (*call).write,
	"file.mkdir":    (*call).mkdir,
	"file.move":     (*call).move,
	"file.remove":   (*call).remove,
	"file.search":   (*call).search,
	"file.watch":    (*call).watch,
	"archive.read":  (*call).archiveRead,
	"archive.write": (*call).archiveWrite,
}

// Serve serves a link whose handshake is over until it ends, and says why it ended. Relative paths in requests are
// meant from workspace, an absolute path.
func Serve(conn io.ReadWriteCloser, workspace string) error {
	var calls mux.Calls
	link := mux.New(conn, mux.Agent, func(s *mux.Stream) {
		if !calls.Enter() {
			return
		}
		defer calls.Leave()
		serve(&call{stream: s, workspace: workspace})
	})
	err := link.Run()
	calls.Finish(graceOnEnd)
	return err
}

func serve(c *call) {
	var head struct {
		Op string `json:"op"`
	}
	err := c.decode(&head)
	if err == nil {
		operation := operations[head.Op]
		if operation == nil {
			err = failure.New("unsupported", "no operation %q on a files link", head.Op)
		} else {
			err = operation(c)
		}
	}
	if err != nil {
		code, message := failure.CodeOf(err)
		c.stream.Reset(code, message)
	}
}

// decode reads the request's fields.
func (c *call) decode(into any) error {
	raw := c.stream.Request()
	if !utf8.Valid(raw) {
		return failure.New("bad_request", "the request is not UTF-8")
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return failure.New("bad_request", "the request: %v", err)
	}
	return nil
}

// over says whether the stream has ended, so that nobody waits for the rest of a long operation.
func (c *call) over() bool {
	select {
	case <-c.stream.Done():
		return true
	default:
		return false
	}
}

// resolve makes a request's path absolute. Empty and "." elements go; ".." stays, because after a symlink only the
// kernel knows what it means.
func (c *call) resolve(p paths.Path) (string, error) {
	switch {
	case p == "":
		return "", failure.New("bad_request", "a path is missing or empty")
	case len(p) > paths.MaxBytes:
		return "", failure.New("bad_request", "a path has more than %d bytes", paths.MaxBytes)
	case strings.IndexByte(string(p), 0) >= 0:
		return "", failure.New("bad_request", "a path contains a NUL byte")
	}
	full := string(p)
	if full[0] != '/' {
		full = c.workspace + "/" + full
	}
	return paths.Tidy(full), nil
}

// limited checks an optional limit of a request against its maximum; absent or 0 means fallback.
func limited(asked, fallback, maximum int) (int, error) {
	if asked < 0 || asked > maximum {
		return 0, failure.New("bad_request", "limit must be 1 to %d", maximum)
	}
	if asked == 0 {
		return fallback, nil
	}
	return asked, nil
}
