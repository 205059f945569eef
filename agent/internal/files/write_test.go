package files

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

func modeOf(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	return info.Mode()
}

func TestWrite(t *testing.T) {
	c := start(t)
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	big := []byte(strings.Repeat("abcdefg", 100000))
	e := c.want("", c.do(fields{"op": "file.write", "path": "new/deep/f"}, big, []byte("end"))).entry()
	if c.content("new/deep/f") != string(big)+"end" || e["size"] != 700003.0 || e["mode"] != float64(0o644) {
		t.Errorf("%v", e)
	}
	c.want("not_found", c.do(fields{"op": "file.write", "path": "other/f", "parents": false}, big))
	c.want("", c.do(fields{"op": "file.write", "path": "x", "mode": 0o6751}, []byte("1")))
	if mode := modeOf(t, filepath.Join(c.dir, "x")); mode != 0o751 {
		t.Errorf("mode %v", mode)
	}
	c.want("", c.do(fields{"op": "file.write", "path": "x"}, []byte("2")))
	if mode := modeOf(t, filepath.Join(c.dir, "x")); mode != 0o751 || c.content("x") != "2" {
		t.Errorf("kept mode %v, content %q", mode, c.content("x"))
	}
	c.want("", c.do(fields{"op": "file.write", "path": "empty"}))
	if c.content("empty") != "" {
		t.Error("not empty")
	}
	for _, path := range []string{".", "/", "new", "new/deep/..", "new/"} {
		c.want("is_a_directory", c.do(fields{"op": "file.write", "path": path}, []byte("x")))
	}
	c.want("not_a_directory", c.do(fields{"op": "file.write", "path": "x/y"}, []byte("x")))
	c.want("bad_request", c.do(fields{"op": "file.write", "path": strings.Repeat("n", 256)}, []byte("x")))
	c.noTemporary()
}

func TestWriteFollowsLinks(t *testing.T) {
	c := start(t)
	c.put("d/real", "old")
	at := func(name string) string { return filepath.Join(c.dir, name) }
	must(t, os.Symlink("d/real", at("one")))
	must(t, os.Symlink(at("one"), at("two")))
	must(t, os.Symlink("d/absent", at("dangling")))
	must(t, os.Symlink("loop", at("loop")))
	must(t, os.Symlink("d", at("folder")))
	c.want("", c.do(fields{"op": "file.write", "path": "two"}, []byte("new")))
	c.want("", c.do(fields{"op": "file.write", "path": "dangling"}, []byte("made")))
	if c.content("d/real") != "new" || c.content("d/absent") != "made" || modeOf(t, at("two"))&os.ModeSymlink == 0 {
		t.Error("the link was replaced, not followed")
	}
	c.want("bad_request", c.do(fields{"op": "file.write", "path": "loop"}, []byte("x")))
	c.want("is_a_directory", c.do(fields{"op": "file.write", "path": "folder"}, []byte("x")))
	c.want("exists", c.do(fields{"op": "file.write", "path": "dangling", "exclusive": true}, []byte("x")))
}

func TestWriteExclusive(t *testing.T) {
	c := start(t)
	c.want("", c.do(fields{"op": "file.write", "path": "f", "exclusive": true}, []byte("1")))
	c.want("exists", c.do(fields{"op": "file.write", "path": "f", "exclusive": true}, []byte("2")))
	// Two at once: neither sees the other at first, one wins.
	a := c.open(fields{"op": "file.write", "path": "g", "exclusive": true})
	b := c.open(fields{"op": "file.write", "path": "g", "exclusive": true})
	must(t, a.SendData(0, 0, []byte("a")))
	must(t, b.SendData(0, 0, []byte("b")))
	for countTemporary(t, c.dir) < 2 {
	}
	must(t, a.End())
	c.want("", c.gather(a))
	must(t, b.End())
	c.want("exists", c.gather(b))
	if c.content("g") != "a" {
		t.Error(c.content("g"))
	}
	c.noTemporary()
}

func countTemporary(t *testing.T, dir string) (n int) {
	names, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range names {
		if strings.HasPrefix(e.Name(), temporary) {
			n++
		}
	}
	return n
}

func TestWriteLeavesNoTrace(t *testing.T) {
	c := start(t)
	c.put("f", "old")
	s := c.open(fields{"op": "file.write", "path": "f"})
	must(t, s.SendData(0, 0, []byte("new")))
	for countTemporary(t, c.dir) == 0 {
	}
	if c.content("f") != "old" {
		t.Error("seen before its end")
	}
	s.Reset("cancelled", "")
	for countTemporary(t, c.dir) > 0 {
	}
	if c.content("f") != "old" {
		t.Error("written although reset")
	}
	s = c.open(fields{"op": "file.write", "path": "f"})
	must(t, s.SendData(0, 7, []byte("gap")))
	c.want("bad_request", c.gather(s))
	s = c.open(fields{"op": "file.write", "path": "f"})
	must(t, s.SendMessage(fields{}))
	c.want("bad_request", c.gather(s))
	c.noTemporary()
}

// While folders and links are swapped all the time, a write lands in one place or the other, or fails: it never
// goes through half of each, and never leaves a file behind.
func TestWriteWhileFoldersAreSwapped(t *testing.T) {
	c := start(t)
	stop, stopped := swapping(t, c.dir)
	for range 500 {
		a := c.do(fields{"op": "file.write", "path": "swap/f", "parents": false}, []byte("data"))
		if a.code != "" && a.code != "not_found" && a.code != "not_a_directory" {
			t.Fatal(a.code)
		}
	}
	stop.Store(true)
	<-stopped
	for _, d := range []string{".", "real", "other", "swap"} {
		if names, err := os.ReadDir(filepath.Join(c.dir, d)); err == nil {
			for _, n := range names {
				if strings.HasPrefix(n.Name(), temporary) {
					t.Errorf("%s/%s is left", d, n.Name())
				}
			}
		}
	}
}

// swapping makes "swap" in dir a folder and a link to "other" in turns.
func swapping(t *testing.T, dir string) (stop *atomic.Bool, stopped chan struct{}) {
	real, other, swap := filepath.Join(dir, "real"), filepath.Join(dir, "other"), filepath.Join(dir, "swap")
	must(t, os.Mkdir(real, 0o755))
	must(t, os.Mkdir(other, 0o755))
	stop, stopped = &atomic.Bool{}, make(chan struct{})
	go func() {
		defer close(stopped)
		for !stop.Load() {
			_ = os.Rename(real, swap)
			_ = os.Rename(swap, real)
			_ = os.Symlink(other, swap)
			_ = os.Remove(swap)
		}
	}()
	return stop, stopped
}
