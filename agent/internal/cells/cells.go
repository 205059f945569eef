// Package cells is the agent's program as an exec that runs one cell of code: it asks the sandbox's bridge to Jupyter
// kernels to run the code, and copies the events that come back to its output.
//
// So a cell ends with its exec. When this program is killed, the bridge sees the connection end and interrupts the
// kernel, whose state stays.
package cells

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Usage says how Run is called.
const Usage = "CONTEXT LANGUAGE [CODE...]"

// What Run returns. A bridge may report no other status.
const (
	OK       = 0
	Raised   = 1
	badUsage = 2
	Died     = 3
)

const (
	// Socket is where the bridge listens.
	Socket = "/tmp/.sandlot-kernels/socket"
	// own names the variables, separated by commas, that are the cell's and not its session's.
	own = "SANDLOT_CELL_VARIABLES"

	maxCode     = 2 << 20
	dialLimit   = 10 * time.Second // while the bridge's queue is full
	dialPause   = 5 * time.Millisecond
	bufferBytes = 64 << 10
	statusMark  = '='
)

type request struct {
	Op       string            `json:"op"`
	Context  string            `json:"context"`
	Language string            `json:"language"`
	Code     string            `json:"code"`
	Environ  map[string]string `json:"environ"` // of the session
	Env      map[string]string `json:"env"`     // of this cell
}

// Run runs one cell and returns the exit status. Code that is too long for arguments is read from in.
func Run(arguments []string, environ []string, in io.Reader, out io.Writer) int {
	if len(arguments) < 2 {
		return badUsage
	}
	code := strings.Join(arguments[2:], "")
	if len(arguments) == 2 {
		read, err := io.ReadAll(io.LimitReader(in, maxCode+1))
		if err != nil || len(read) > maxCode {
			return fail(out, "CodeUnread", "The code could not be read, or is longer than 2 MiB.", Raised)
		}
		code = string(read)
	}
	q := request{Op: "run", Context: arguments[0], Language: arguments[1], Code: code}
	q.Environ, q.Env = split(environ)
	return ask(Socket, q, out)
}

// split tells the session's variables from the cell's own.
func split(environ []string) (session, cell map[string]string) {
	session, cell = map[string]string{}, map[string]string{}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		session[name] = value
	}
	for _, name := range strings.Split(session[own], ",") {
		if value, ok := session[name]; ok {
			cell[name] = value
			delete(session, name)
		}
	}
	delete(session, own)
	return session, cell
}

func ask(socket string, q request, out io.Writer) int {
	conn, err := dial(socket)
	if err != nil {
		return died(out)
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(q); err != nil {
		return died(out)
	}
	return copyEvents(conn, out)
}

// dial tries again while the bridge's queue is full: the kernel does not wait for a Unix socket.
func dial(socket string) (net.Conn, error) {
	deadline := time.Now().Add(dialLimit)
	for {
		conn, err := net.Dial("unix", socket)
		if !errors.Is(err, syscall.EAGAIN) || time.Now().After(deadline) {
			return conn, err
		}
		time.Sleep(dialPause)
	}
}

// copyEvents copies lines until the one that says how the cell ended. A line is never held as a whole.
func copyEvents(conn io.Reader, out io.Writer) int {
	lines := bufio.NewReaderSize(conn, bufferBytes)
	for {
		first, err := lines.Peek(1)
		if err != nil {
			return died(out)
		}
		if first[0] == statusMark {
			line, _ := lines.ReadSlice('\n')
			return status(string(line))
		}
		for {
			piece, err := lines.ReadSlice('\n')
			if _, writeErr := out.Write(piece); writeErr != nil {
				return Died // nobody reads any more
			}
			if err == nil {
				break
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				_, _ = out.Write([]byte("\n")) // ends the line that was cut off
				return died(out)
			}
		}
	}
}

func status(line string) int {
	code, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, string(statusMark))))
	if err != nil || code < OK || code > Died {
		return Died
	}
	return code
}

func died(out io.Writer) int {
	return fail(out, "KernelDied", "The session's kernels have ended, and their state is lost. "+
		"Run the code again, with what it builds on: a new kernel starts.", Died)
}

func fail(out io.Writer, name, value string, code int) int {
	event := struct {
		Type      string   `json:"type"`
		Name      string   `json:"name"`
		Value     string   `json:"value"`
		Traceback []string `json:"traceback"`
	}{"error", name, value, []string{}}
	_ = json.NewEncoder(out).Encode(event) // if nobody reads it, the status still tells
	return code
}

// Main is Run on the process's own files.
func Main(arguments []string) int {
	return Run(arguments, os.Environ(), os.Stdin, os.Stdout)
}
