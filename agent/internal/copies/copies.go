// Package copies is the agent's program as a worker runs it beside sandboxes, in a container that has one volume and
// nothing else: it copies a folder out of that volume or into it.
package copies

import (
	"encoding/json"
	"io"
	"os"
	"strconv"
	"syscall"

	"sandlot.dev/agent/internal/files/archive"
	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/sys"
)

const maxFiles = 4 << 20 // entries of a folder that are copied

// Usage says how Run is called.
const Usage = "keep FOLDER MAX_BYTES | restore FOLDER MAX_BYTES OWNER | mark FOLDER"

// report is the one line that tells how it went. Without it, nothing is certain.
type report struct {
	Mark    string `json:"mark,omitempty"`
	Bytes   int64  `json:"bytes"`
	Files   int64  `json:"files"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// Run does what the arguments say and reports it. It returns the exit status.
func Run(arguments []string, in io.Reader, out, reports io.Writer) int {
	done, err := run(arguments, in, out)
	if err != nil {
		done.Code, done.Message = failure.CodeOf(err)
	}
	if writeErr := json.NewEncoder(reports).Encode(done); writeErr != nil || err != nil {
		return 1
	}
	return 0
}

func run(arguments []string, in io.Reader, out io.Writer) (report, error) {
	wanted := map[string]int{"keep": 3, "restore": 4, "mark": 2}
	if len(arguments) == 0 || wanted[arguments[0]] != len(arguments) {
		return report{}, failure.New("bad_request", "usage: copy %s", Usage)
	}
	verb, folder := arguments[0], arguments[1]
	var numbers [2]int64
	for i, text := range arguments[2:] {
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil || number < 0 {
			return report{}, failure.New("bad_request", "%q is not a number", text)
		}
		numbers[i] = number
	}
	limits := archive.Limits{MaxBytes: numbers[0], MaxFiles: maxFiles}
	switch verb {
	case "keep":
		kept, err := archive.Keep(out, folder, limits)
		return report{Mark: kept.Mark.String(), Bytes: kept.Bytes, Files: kept.Files}, err
	case "restore":
		return restore(in, folder, int(numbers[1]), limits)
	}
	mark, err := archive.MarkOf(folder)
	return report{Mark: mark.String()}, err
}

// restore fills a folder that does not exist yet.
func restore(in io.Reader, folder string, owner int, limits archive.Limits) (report, error) {
	if err := os.Mkdir(folder, sys.NewFolderMode); err != nil {
		return report{}, err
	}
	fd, _, err := sys.OpenFolder(sys.AtFdcwd, folder)
	if err != nil {
		return report{}, err
	}
	defer syscall.Close(fd)
	unpacked, err := archive.Restore(in, fd, owner, limits)
	done := report{Bytes: unpacked.Bytes, Files: unpacked.Files}
	if err != nil {
		return done, err
	}
	mark, err := archive.MarkOf(folder)
	done.Mark = mark.String()
	return done, err
}
