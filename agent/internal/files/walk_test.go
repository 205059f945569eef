package files

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
	"testing"
)

func names(items []map[string]any) (all []string) {
	for _, item := range items {
		all = append(all, item["name"].(string))
	}
	return all
}

func TestListPages(t *testing.T) {
	c := start(t)
	const total = 50000
	for i := range total {
		fd, err := syscall.Open(fmt.Sprintf("%s/many-%05d", c.dir, i), syscall.O_CREAT|syscall.O_WRONLY, 0o644)
		must(t, err)
		syscall.Close(fd)
	}
	var all []string
	var after any
	for page := 0; ; page++ {
		a := c.want("", c.do(fields{"op": "file.list", "path": ".", "after": after, "limit": 7000}))
		got := names(a.items("entries"))
		all = append(all, got...)
		next, there := a.last()["next"]
		if !there {
			t.Fatal("no next in the last message")
		}
		if next == nil {
			break
		}
		if len(got) != 7000 || next != got[len(got)-1] {
			t.Fatalf("page of %d, next %v", len(got), next)
		}
		after = next
	}
	if len(all) != total || !sort.StringsAreSorted(all) || len(slices.Compact(all)) != total {
		t.Errorf("%d names", len(all))
	}
	if a := c.do(fields{"op": "file.list", "path": "."}); len(a.items("entries")) != listDefault || a.last()["next"] != "many-00999" {
		t.Errorf("by default %d", len(a.items("entries")))
	}
	if a := c.want("", c.do(fields{"op": "file.walk", "path": ".", "limit": 20000})); len(a.items("entries")) != 20000 || a.last()["truncated"] != true {
		t.Errorf("walk of %d", len(a.items("entries")))
	}
	if a := c.want("", c.do(fields{"op": "file.remove", "path": c.dir, "recursive": true})); a.last()["removed"] != float64(total+1) {
		t.Errorf("removed %v", a.last())
	}
	must(t, os.Mkdir(c.dir, 0o755))
}

func TestList(t *testing.T) {
	c := start(t)
	c.put("b", "12")
	c.put("a/x", "")
	must(t, os.Symlink("b", filepath.Join(c.dir, "c")))
	items := c.want("", c.do(fields{"op": "file.list", "path": "."})).items("entries")
	if got := names(items); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Fatal(got)
	}
	if items[1]["size"] != 2.0 || items[1]["path"] != filepath.Join(c.dir, "b") || items[2]["type"] != "symlink" || items[2]["target"] != "b" {
		t.Errorf("%v", items)
	}
	if a := c.do(fields{"op": "file.list", "path": "a", "after": "x"}); len(a.items("entries")) != 0 || a.last()["next"] != nil {
		t.Errorf("%v", a.messages)
	}
}

func walked(c *client, a *answer) (all []string) {
	for _, item := range a.items("entries") {
		rel, err := filepath.Rel(c.dir, item["path"].(string))
		must(c.t, err)
		all = append(all, rel)
	}
	sort.Strings(all)
	return all
}

func TestWalk(t *testing.T) {
	c := start(t)
	c.put("a/b/c.py", "")
	c.put("a/d.py", "")
	c.put("e.py", "")
	must(t, os.Symlink("..", filepath.Join(c.dir, "a/up")))
	for _, row := range []struct {
		request   fields
		want      string
		truncated bool
	}{
		{fields{}, "a a/b a/b/c.py a/d.py a/up e.py", false},
		{fields{"depth": 1}, "a e.py", false},
		{fields{"depth": 2}, "a a/b a/d.py a/up e.py", false},
		{fields{"glob": "**/*.py"}, "a/b/c.py a/d.py e.py", false},
		{fields{"glob": "*.py"}, "e.py", false},
		{fields{"glob": "**/c.py", "limit": 1}, "a/b/c.py", false},
	} {
		row.request["op"], row.request["path"] = "file.walk", "."
		a := c.want("", c.do(row.request))
		if got := strings.Join(walked(c, a), " "); got != row.want || a.last()["truncated"] != row.truncated {
			t.Errorf("%v: %s, %v", row.request, got, a.last()["truncated"])
		}
	}
	if a := c.do(fields{"op": "file.walk", "path": ".", "limit": 2}); len(a.items("entries")) != 2 || a.last()["truncated"] != true {
		t.Errorf("%v", a.messages)
	}
}

// dig makes folders within folders.
func dig(t *testing.T, dir, name string, depth int) {
	fd, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	must(t, err)
	for range depth {
		must(t, syscall.Mkdirat(fd, name, 0o755))
		next, err := syscall.Openat(fd, name, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
		must(t, err)
		syscall.Close(fd)
		fd = next
	}
	syscall.Close(fd)
}

func TestDeepFolders(t *testing.T) {
	c := start(t)
	const depth = 5000
	dig(t, c.dir, "d", depth)
	a := c.want("", c.do(fields{"op": "file.walk", "path": "."}))
	if n := len(a.items("entries")); n < 1900 || n > 2048 || a.last()["truncated"] != true {
		t.Errorf("walk: %d entries, truncated %v", n, a.last()["truncated"])
	}
	a = c.want("", c.do(fields{"op": "file.search", "path": ".", "pattern": "x"}))
	if a.last()["truncated"] != true {
		t.Errorf("search: %v", a.last())
	}
	tarred := c.want("", c.do(fields{"op": "archive.read", "path": "."}))
	if tarred.last()["files"] != float64(depth) {
		t.Errorf("archive: %v", tarred.last())
	}
	a = c.want("", c.do(fields{"op": "archive.write", "path": "copy"}, tarred.data))
	if a.last()["files"] != float64(depth) {
		t.Errorf("unpacked: %v", a.last())
	}
	for _, path := range []string{"d", "copy"} {
		a = c.want("", c.do(fields{"op": "file.remove", "path": path, "recursive": true}))
		if a.last()["removed"].(float64) < depth {
			t.Errorf("removed %v", a.last())
		}
	}
}

func TestWalkAndRemoveWithFewDescriptors(t *testing.T) {
	c := start(t)
	dig(t, c.dir, "d", 300)
	var old syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old))
	few := old
	few.Cur = 100
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old)
	if a := c.want("", c.do(fields{"op": "file.walk", "path": "."})); len(a.items("entries")) != 300 {
		t.Errorf("%d entries", len(a.items("entries")))
	}
	c.want("", c.do(fields{"op": "file.remove", "path": "d", "recursive": true}))
}

func TestSearch(t *testing.T) {
	c := start(t)
	c.put("a.txt", "one\nTwo\r\nthree two\n")
	c.put("d/b.txt", "two")
	c.put("binary", "two\x00")
	c.put("late", strings.Repeat("x", sniffSize)+"\n\x00two\n")
	c.put("long", strings.Repeat("é", 700)+"two\n"+strings.Repeat("y", 100000)+"two\nlast two\n")
	c.put("broken", "\xff two \xc3\n")
	found := func(request fields) string {
		request["op"], request["path"] = "file.search", "."
		var all []string
		for _, m := range c.want("", c.do(request)).items("matches") {
			rel, err := filepath.Rel(c.dir, m["path"].(string))
			must(t, err)
			all = append(all, fmt.Sprintf("%s:%v", rel, m["line"]))
			if len(m["text"].(string)) > textSize {
				t.Errorf("text of %d bytes", len(m["text"].(string)))
			}
		}
		sort.Strings(all)
		return strings.Join(all, " ")
	}
	for want, request := range map[string]fields{
		"a.txt:3 broken:1 d/b.txt:1 late:2 long:1 long:2 long:3": {"pattern": "two"},
		"a.txt:2 a.txt:3": {"pattern": "TWO", "ignore_case": true, "glob": "*.txt"},
		"a.txt:2":         {"pattern": "^t..$", "ignore_case": true, "regex": true, "glob": "a.*"},
		"d/b.txt:1":       {"pattern": "^t.o$", "regex": true},
		"":                {"pattern": "t.o"},
		"a.txt:1 a.txt:2": {"pattern": "^(one|Two)$", "regex": true},
	} {
		if got := found(request); got != want {
			t.Errorf("%v: %s", request, got)
		}
	}
	a := c.want("", c.do(fields{"op": "file.search", "path": "a.txt", "pattern": "o", "limit": 2}))
	if len(a.items("matches")) != 2 || a.last()["truncated"] != true {
		t.Errorf("%v", a.messages)
	}
	a = c.do(fields{"op": "file.search", "path": "broken", "pattern": "two"})
	if text := a.items("matches")[0]["text"]; text != "\ufffd two \ufffd" {
		t.Errorf("%q", text)
	}
	a = c.do(fields{"op": "file.search", "path": "long", "pattern": "two", "limit": 1})
	if text := a.items("matches")[0]["text"].(string); text != strings.Repeat("é", 500) {
		t.Errorf("%d bytes", len(text))
	}
}

func TestSearchHoldsLittleOfALongLine(t *testing.T) {
	c := start(t)
	c.put("line", "two "+strings.Repeat("z", 20<<20)+" late\nnext late\n")
	if a := c.do(fields{"op": "file.search", "path": "line", "pattern": "late"}); len(a.items("matches")) != 1 || a.items("matches")[0]["line"] != 2.0 {
		t.Errorf("%v", a.messages)
	}
}
