package files

import (
	"bufio"
	"bytes"
	"io"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/glob"
	"sandlot.dev/agent/internal/files/paths"
	"sandlot.dev/agent/internal/files/sys"
	"sandlot.dev/agent/internal/files/tree"
)

const (
	maxPattern    = glob.MaxBytes // as of a glob
	searchDefault = 1000
	searchLimit   = 10000
	searchSize    = 256 << 20 // larger files are passed over
	sniffSize     = 8 << 10   // a NUL in these first bytes makes a file binary
	lineSize      = 1 << 20   // of a longer line only this much is looked at
	textSize      = 1000      // bytes of a line in an answer
)

type searchRequest struct {
	Path       paths.Path `json:"path"`
	Pattern    string     `json:"pattern"`
	Regex      bool       `json:"regex"`
	IgnoreCase bool       `json:"ignore_case"`
	Glob       paths.Path `json:"glob"`
	Limit      int        `json:"limit"`
}

// compile makes the test for a line. Expressions are RE2's, whose time is linear in the line.
func (q *searchRequest) compile() (func(line []byte) bool, error) {
	switch {
	case q.Pattern == "":
		return nil, failure.New("bad_request", "the pattern is empty")
	case len(q.Pattern) > maxPattern:
		return nil, failure.New("bad_request", "the pattern has more than %d bytes", maxPattern)
	}
	expression := q.Pattern
	if !q.Regex {
		if !q.IgnoreCase {
			literal := []byte(q.Pattern)
			return func(line []byte) bool { return bytes.Contains(line, literal) }, nil
		}
		expression = regexp.QuoteMeta(q.Pattern)
	}
	if q.IgnoreCase {
		expression = "(?i:" + expression + ")"
	}
	compiled, err := regexp.Compile(expression)
	if err != nil {
		return nil, failure.New("bad_request", "the pattern: %v", err)
	}
	return compiled.Match, nil
}

// searcher looks through files one after the other and sends the lines that match.
type searcher struct {
	over      func() bool
	matches   func(line []byte) bool
	out       batch
	left      int // matches that may still be told
	truncated bool
	reader    *bufio.Reader
	line      []byte
}

// search serves file.search.
func (c *call) search() error {
	var q searchRequest
	if err := c.decode(&q); err != nil {
		return err
	}
	path, err := c.resolve(q.Path)
	if err != nil {
		return err
	}
	limit, err := limited(q.Limit, searchDefault, searchLimit)
	if err != nil {
		return err
	}
	matches, err := q.compile()
	if err != nil {
		return err
	}
	wanted, err := glob.Compile(string(q.Glob))
	if err != nil {
		return err
	}
	st, err := sys.Fstatat(sys.AtFdcwd, path, 0)
	if err != nil {
		return failure.At(path, err)
	}
	s := searcher{over: c.over, matches: matches, out: batch{stream: c.stream, key: "matches"}, left: limit,
		reader: bufio.NewReaderSize(nil, 64<<10)}
	if st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		err = s.searchFolder(path, wanted)
	} else if err = sys.MustBeRegular(st.Mode); err == nil {
		err = s.searchFile(sys.AtFdcwd, path, 0, path)
	}
	if err != nil && err != tree.ErrEnough {
		return failure.At(path, err)
	}
	return s.out.finish(map[string]any{"truncated": s.truncated})
}

func (s *searcher) searchFolder(path string, wanted func(string) bool) error {
	fd, err := sys.Openat(sys.AtFdcwd, path, sys.ReadFlags|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	w := tree.Walker{MaxRel: paths.MaxBytes - len(path) - 1, Over: s.over}
	w.Visit = func(n tree.Node) error {
		if n.Kind != tree.File || !wanted(n.Rel) {
			return nil
		}
		err := s.searchFile(n.Dirfd, n.Name, syscall.O_NOFOLLOW, paths.Join(path, n.Rel))
		if tree.Unreadable(err) {
			return nil // this file; the others go on
		}
		return err
	}
	err = w.Run(fd)
	if failure.Has(err, "conflict") {
		w.Truncated, err = true, nil
	}
	s.truncated = s.truncated || w.Truncated
	return err
}

// fileReader reads an open file as a stream; its errors end the file, not the search.
type fileReader struct {
	fd     int
	offset int64
	over   func() bool
}

func (f *fileReader) Read(p []byte) (int, error) {
	if f.over() {
		return 0, failure.New("cancelled", "the stream is over")
	}
	n, err := sys.ReadAt(f.fd, p, f.offset)
	f.offset += int64(n)
	if err != nil || n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (s *searcher) searchFile(dirfd int, name string, flags int, path string) error {
	fd, st, err := sys.OpenRegular(dirfd, name, flags)
	if err != nil {
		if flags&syscall.O_NOFOLLOW != 0 && (failure.Has(err, "not_regular") || failure.Has(err, "is_a_directory")) {
			return nil // swapped for something else since it was seen
		}
		return err
	}
	defer syscall.Close(fd)
	if st.Size == 0 || st.Size > searchSize {
		return nil // files of /proc have no size, and some of them no end
	}
	s.reader.Reset(io.LimitReader(&fileReader{fd: fd, over: s.over}, searchSize))
	if start, _ := s.reader.Peek(sniffSize); bytes.IndexByte(start, 0) >= 0 {
		return nil
	}
	for number := 1; ; number++ {
		line, err := s.nextLine()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if !s.matches(line) {
			continue
		}
		if s.left == 0 {
			s.truncated = true
			return tree.ErrEnough
		}
		s.left--
		item := append([]byte(`{"path":`), paths.AppendString(nil, path)...)
		item = strconv.AppendInt(append(item, `,"line":`...), int64(number), 10)
		item = paths.AppendString(append(item, `,"text":`...), cutText(line))
		if err := s.out.add(append(item, '}')); err != nil {
			return err
		}
	}
}

// nextLine returns the next line without its end, cut at lineSize; it is valid until the next call.
func (s *searcher) nextLine() ([]byte, error) {
	piece, err := s.reader.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		s.line = append(s.line[:0], piece...)
		for err == bufio.ErrBufferFull {
			piece, err = s.reader.ReadSlice('\n')
			s.line = append(s.line, piece[:min(len(piece), lineSize-len(s.line))]...)
		}
		piece = s.line
	}
	if err != nil && (err != io.EOF || len(piece) == 0) {
		return nil, err
	}
	piece = bytes.TrimSuffix(piece, []byte("\n"))
	return bytes.TrimSuffix(piece, []byte("\r")), nil
}

// cutText makes a line fit to be told: UTF-8, of at most textSize bytes.
func cutText(line []byte) string {
	text := strings.ToValidUTF8(string(line[:min(len(line), textSize+utf8.UTFMax)]), "\ufffd")
	if len(text) <= textSize {
		return text
	}
	end := textSize
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}
