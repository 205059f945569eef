// Package glob matches whole relative paths: `*` any run of characters but "/", `?` one of them, `[a-z]` and `[!a-z]` one
// of a set, a backslash takes the next character as it is, and `**` between slashes any number of folders, also none.
// Both levels go back only to the last star, so a match costs at most pattern length × path length.
package glob

import (
	"strings"
	"unicode/utf8"

	"sandlot.dev/agent/internal/files/failure"
)

// MaxBytes is how long a pattern may be.
const MaxBytes = 4096

// part is one thing that a segment of a glob asks for.
type part struct {
	star   bool
	any    bool // `?`
	class  []span
	negate bool
	char   rune
}

type span struct{ low, high rune }

type segment struct {
	deep  bool // `**`
	parts []part
}

// Compile makes a matcher; an empty pattern matches everything.
func Compile(pattern string) (func(rel string) bool, error) {
	if pattern == "" {
		return func(string) bool { return true }, nil
	}
	if len(pattern) > MaxBytes {
		return nil, failure.New("bad_request", "the glob has more than %d bytes", MaxBytes)
	}
	var segments []segment
	for text := range strings.SplitSeq(pattern, "/") {
		if text == "**" {
			if len(segments) == 0 || !segments[len(segments)-1].deep {
				segments = append(segments, segment{deep: true})
			}
			continue
		}
		parts, err := compileSegment(text)
		if err != nil {
			return nil, err
		}
		segments = append(segments, segment{parts: parts})
	}
	return func(rel string) bool { return matchSegments(segments, strings.Split(rel, "/")) }, nil
}

func compileSegment(text string) ([]part, error) {
	var parts []part
	for len(text) > 0 {
		c, size := decodeRune(text)
		text = text[size:]
		switch c {
		case '*':
			if len(parts) == 0 || !parts[len(parts)-1].star {
				parts = append(parts, part{star: true})
			}
		case '?':
			parts = append(parts, part{any: true})
		case '[':
			p, rest, err := compileClass(text)
			if err != nil {
				return nil, err
			}
			parts, text = append(parts, p), rest
		case '\\':
			if text == "" {
				return nil, failure.New("bad_request", "the glob ends a name in a backslash")
			}
			c, size = decodeRune(text)
			text = text[size:]
			parts = append(parts, part{char: c})
		default:
			parts = append(parts, part{char: c})
		}
	}
	return parts, nil
}

// compileClass reads a set after its opening bracket.
func compileClass(text string) (part, string, error) {
	p := part{class: []span{}}
	broken := failure.New("bad_request", "the glob has a [ without its ]")
	if strings.HasPrefix(text, "!") || strings.HasPrefix(text, "^") {
		p.negate = true
		text = text[1:]
	}
	next := func() (rune, bool) {
		c, size := decodeRune(text)
		text = text[size:]
		if c == '\\' && size > 0 {
			c, size = decodeRune(text)
			text = text[size:]
		}
		return c, size > 0
	}
	for first := true; ; first = false {
		if !first && strings.HasPrefix(text, "]") {
			return p, text[1:], nil
		}
		low, ok := next()
		if !ok {
			return p, "", broken
		}
		high := low
		if len(text) > 1 && text[0] == '-' && text[1] != ']' {
			text = text[1:]
			if high, ok = next(); !ok {
				return p, "", broken
			}
		}
		p.class = append(p.class, span{low, high})
	}
}

// decodeRune takes a byte that is not UTF-8 as a character of its own, apart from every real one.
func decodeRune(s string) (rune, int) {
	r, size := utf8.DecodeRuneInString(s)
	if r == utf8.RuneError && size == 1 {
		return -1 - rune(s[0]), 1
	}
	return r, size
}

func (p *part) matches(c rune) bool {
	if p.any {
		return true
	}
	if p.class == nil {
		return p.char == c
	}
	for _, s := range p.class {
		if s.low <= c && c <= s.high {
			return !p.negate
		}
	}
	return p.negate
}

func matchSegments(segments []segment, names []string) bool {
	s, n := 0, 0
	backS, backN := -1, 0
	for n < len(names) {
		switch {
		case s < len(segments) && segments[s].deep:
			backS, backN = s, n
			s++
			continue
		case s < len(segments) && matchName(segments[s].parts, names[n]):
			s++
			n++
			continue
		case backS < 0:
			return false
		}
		backN++
		s, n = backS+1, backN
	}
	for s < len(segments) && segments[s].deep {
		s++
	}
	return s == len(segments)
}

func matchName(parts []part, name string) bool {
	p, n := 0, 0
	backP, backN := -1, 0
	for n < len(name) {
		c, size := decodeRune(name[n:])
		switch {
		case p < len(parts) && parts[p].star:
			backP, backN = p, n
			p++
			continue
		case p < len(parts) && parts[p].matches(c):
			p++
			n += size
			continue
		case backP < 0:
			return false
		}
		_, size = decodeRune(name[backN:])
		backN += size
		p, n = backP+1, backN
	}
	for p < len(parts) && parts[p].star {
		p++
	}
	return p == len(parts)
}
