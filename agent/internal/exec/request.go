package exec

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

const (
	maxOutputLimit = 16 << 20
	maxTimeoutMS   = 1 << 40 // 34 years; far above, a clock's nanoseconds would overflow
	shownBytes     = 160     // of a command, in a list
)

type Pty struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Request is exec.start, but for the reader's offset: equal requests are the same exec.
type Request struct {
	ExecID      string            `json:"exec_id"`
	Argv        []string          `json:"argv"`
	Command     string            `json:"command"`
	Cwd         string            `json:"cwd"`
	Env         map[string]string `json:"env"`
	Stdin       bool              `json:"stdin"`
	TimeoutMS   int64             `json:"timeout_ms"`
	OutputLimit int               `json:"output_limit"`
	OnLimit     string            `json:"on_limit"`
	Pty         *Pty              `json:"pty"`
	Shell       string            `json:"shell"`
	// Merge: stdout and stderr are one pipe, and all that comes of it is stdout.
	Merge bool `json:"merge"`
}

// Exit is the one result of an exec.
type Exit struct {
	Event      string  `json:"event"`
	Code       int     `json:"code"`
	Signal     int     `json:"signal"`
	Reason     string  `json:"reason"`
	Error      string  `json:"error,omitempty"`
	Truncated  bool    `json:"truncated"`
	DurationMS float64 `json:"duration_ms"`
	UserMS     float64 `json:"user_ms"`
	SystemMS   float64 `json:"system_ms"`
	PeakMemory int64   `json:"peak_memory_bytes"`
	OOM        bool    `json:"oom"`
	DiskFull   bool    `json:"disk_full"`
	ShellEnded bool    `json:"shell_ended"`
	ShellNew   bool    `json:"shell_restarted"`
	// OutputBytes counts what the command wrote, kept or not.
	OutputBytes uint64 `json:"output_bytes"`
	StderrBytes uint64 `json:"stderr_bytes"` // of these, on stderr
	// Of a truncated output: the bytes from GapFrom to GapTo, which were not kept.
	GapFrom uint64 `json:"gap_from,omitempty"`
	GapTo   uint64 `json:"gap_to,omitempty"`
}

var idPattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// shown is the beginning of the command, as valid text.
func (q *Request) shown() string {
	text := q.Command
	if text == "" {
		text = strings.Join(q.Argv, " ")
	}
	if len(text) <= shownBytes {
		return strings.ToValidUTF8(text, "\uFFFD")
	}
	cut := shownBytes
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return strings.ToValidUTF8(text[:cut], "\uFFFD") + "…"
}

// errors is the channel of what is not stdout.
func (q *Request) errors() byte {
	if q.Merge {
		return 1
	}
	return 2
}

func (q *Request) check() error {
	switch {
	case !idPattern.MatchString(q.ExecID):
		return errors.New("exec_id: 1-64 characters of A-Z a-z 0-9 _ . -")
	case (len(q.Argv) == 0) == (q.Command == ""):
		return errors.New("give exactly one of argv and command")
	case q.Shell != "" && (!idPattern.MatchString(q.Shell) || q.Command == "" || q.Pty != nil):
		return errors.New("shell: a name, with a command and without pty")
	case q.TimeoutMS < 0 || q.TimeoutMS > maxTimeoutMS || q.OutputLimit < 0 || q.OutputLimit > maxOutputLimit:
		return errors.New("timeout_ms or output_limit out of range")
	case q.OnLimit != "" && q.OnLimit != "truncate" && q.OnLimit != "kill":
		return errors.New("on_limit: truncate or kill")
	case q.Cwd != "" && !strings.HasPrefix(q.Cwd, "/"):
		return errors.New("cwd must be absolute")
	case underProc(q.Cwd):
		return errors.New("cwd under /proc is refused")
	}
	for name, value := range q.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return errors.New("env: bad name or value")
		}
	}
	for _, text := range append([]string{q.Command, q.Cwd}, q.Argv...) {
		if strings.Contains(text, "\x00") {
			return errors.New("NUL in the command")
		}
	}
	return nil
}

// underProc: a folder under /proc/*/fd could lead out of the sandbox through a descriptor that a runtime left open.
func underProc(path string) bool { return strings.HasPrefix(filepath.Clean(path), "/proc/") }

func (q *Request) sum() [32]byte {
	raw, _ := json.Marshal(q) // strings and numbers only: cannot fail
	return sha256.Sum256(raw)
}
