package glob

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestGlob(t *testing.T) {
	for _, row := range []struct {
		pattern, path string
		want          bool
	}{
		{"", "a/b", true},
		{"*.py", "a.py", true},
		{"*.py", "d/a.py", false},
		{"**/*.py", "a.py", true},
		{"**/*.py", "d/e/a.py", true},
		{"d/**", "d", true},
		{"d/**", "d/e/f", true},
		{"d/**", "de/f", false},
		{"d/**/f", "d/f", true},
		{"d/**/f", "d/x/y/f", true},
		{"d/**/f", "d/x/y/g", false},
		{"**/a/**/b", "x/a/y/a/z/b", true},
		{"**/a/*/b", "a/x/a/y/b", true},
		{"**", "a/b/c", true},
		{"**/**", "a", true},
		{"a**b", "axxb", true},
		{"a**b", "ax/xb", false},
		{"?", "é", true},
		{"??", "é", false},
		{"?", "\xff", true},
		{"?", "/", false},
		{"[a-c]x", "bx", true},
		{"[!a-c]x", "bx", false},
		{"[^a-c]x", "dx", true},
		{"[]]", "]", true},
		{"[!]]", "a", true},
		{"[a-]", "-", true},
		{`[\]a]`, "]", true},
		{"[à-é]", "è", true},
		{"[a-z]", "\xff", false},
		{`\*`, "*", true},
		{`\*`, "x", false},
		{"*", ".hidden", true},
		{"a*b*c", "aXbYbZc", true},
		{"a*b*c", "aXbYbZ", false},
		{"*\ufffd", "\xff", false},
		{"a/", "a", false},
		{"*", "", true},
	} {
		matches, err := Compile(row.pattern)
		if err != nil {
			t.Errorf("%q: %v", row.pattern, err)
		} else if matches(row.path) != row.want {
			t.Errorf("%q on %q: %v", row.pattern, row.path, !row.want)
		}
	}
	for _, bad := range []string{"[", "[a", "[!", "[]", `a\`, "[a-", `[\`, "x/[/y"} {
		if _, err := Compile(bad); err == nil {
			t.Errorf("%q compiled", bad)
		}
	}
}

func TestGlobIsNotExponential(t *testing.T) {
	begin := time.Now()
	for pattern, path := range map[string]string{
		strings.Repeat("a*", 2000) + "b":     strings.Repeat("a", 4000),
		strings.Repeat("**/a/", 800) + "b":   strings.Repeat("a/", 2000),
		strings.Repeat("**/*a*/", 500) + "b": strings.Repeat("aaaa/", 800),
	} {
		matches, err := Compile(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if matches(path) {
			t.Errorf("%.20q matches", pattern)
		}
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

// naive is the meaning of a glob without classes and escapes, in the plainest words.
func naive(pattern, path []string) bool {
	if len(pattern) == 0 {
		return len(path) == 0
	}
	if pattern[0] == "**" {
		return naive(pattern[1:], path) || len(path) > 0 && naive(pattern, path[1:])
	}
	return len(path) > 0 && naiveName([]rune(pattern[0]), []rune(path[0])) && naive(pattern[1:], path[1:])
}

func naiveName(pattern, name []rune) bool {
	if len(pattern) == 0 {
		return len(name) == 0
	}
	if pattern[0] == '*' {
		return naiveName(pattern[1:], name) || len(name) > 0 && naiveName(pattern, name[1:])
	}
	return len(name) > 0 && (pattern[0] == '?' || pattern[0] == name[0]) && naiveName(pattern[1:], name[1:])
}

func FuzzGlob(f *testing.F) {
	f.Add("**/a*/?b", "x/ab/cb")
	f.Add("[a-z]*", "q")
	f.Add(`[\`, "\xff")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		matches, err := Compile(pattern)
		if err != nil {
			return
		}
		got := matches(path)
		plain := utf8.ValidString(pattern) && utf8.ValidString(path) && !strings.ContainsAny(pattern, `[\`)
		if !plain || pattern == "" || strings.Count(pattern, "*") > 6 || len(pattern) > 24 || len(path) > 24 {
			return
		}
		if want := naive(strings.Split(pattern, "/"), strings.Split(path, "/")); got != want {
			t.Errorf("%q on %q: %v, want %v", pattern, path, got, want)
		}
	})
}
