package files

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestMkdir(t *testing.T) {
	c := start(t)
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	e := c.want("", c.do(fields{"op": "file.mkdir", "path": "d", "mode": 0o7775})).entry()
	if e["type"] != "directory" || e["mode"] != float64(0o775) {
		t.Errorf("%v", e)
	}
	c.want("exists", c.do(fields{"op": "file.mkdir", "path": "d"}))
	c.want("", c.do(fields{"op": "file.mkdir", "path": "d", "parents": true}))
	c.want("not_found", c.do(fields{"op": "file.mkdir", "path": "a/b/c"}))
	c.want("", c.do(fields{"op": "file.mkdir", "path": "a/b/c", "parents": true}))
	c.put("f", "")
	c.want("exists", c.do(fields{"op": "file.mkdir", "path": "f", "parents": true}))
	c.want("not_a_directory", c.do(fields{"op": "file.mkdir", "path": "f/g", "parents": true}))
	c.want("exists", c.do(fields{"op": "file.mkdir", "path": "/"}))
}

func TestMove(t *testing.T) {
	c := start(t)
	c.put("a", "a")
	c.put("b", "b")
	c.put("d/f", "f")
	must(t, os.Symlink("nowhere", filepath.Join(c.dir, "link")))
	e := c.want("", c.do(fields{"op": "file.move", "source": "a", "destination": "d/a"})).entry()
	if e["name"] != "a" || c.content("d/a") != "a" {
		t.Errorf("%v", e)
	}
	c.want("not_found", c.do(fields{"op": "file.move", "source": "a", "destination": "z"}))
	c.want("exists", c.do(fields{"op": "file.move", "source": "d/a", "destination": "b"}))
	c.want("exists", c.do(fields{"op": "file.move", "source": "d/a", "destination": "link"}))
	c.want("", c.do(fields{"op": "file.move", "source": "d/a", "destination": "b", "overwrite": true}))
	if c.content("b") != "a" {
		t.Error(c.content("b"))
	}
	c.want("is_a_directory", c.do(fields{"op": "file.move", "source": "b", "destination": "d", "overwrite": true}))
	c.want("not_a_directory", c.do(fields{"op": "file.move", "source": "d", "destination": "b", "overwrite": true}))
	c.want("bad_request", c.do(fields{"op": "file.move", "source": "d", "destination": "d/e"}))
	c.want("", c.do(fields{"op": "file.move", "source": "d", "destination": "e"}))
	c.want("", c.do(fields{"op": "file.move", "source": "link", "destination": "link2"}))
}

func TestMoveAcrossFileSystems(t *testing.T) {
	other, err := os.MkdirTemp("/dev/shm", "sandlot-test-")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(other)
	c := start(t)
	var here, there syscall.Stat_t
	must(t, syscall.Stat(c.dir, &here))
	must(t, syscall.Stat(other, &there))
	if here.Dev == there.Dev {
		t.Skip("one file system")
	}
	must(t, os.WriteFile(filepath.Join(other, "f"), []byte("carried"), 0o640))
	must(t, os.Mkdir(filepath.Join(other, "d"), 0o755))
	c.want("", c.do(fields{"op": "file.move", "source": filepath.Join(other, "f"), "destination": "f"}))
	if c.content("f") != "carried" || modeOf(t, filepath.Join(c.dir, "f")) != 0o640 {
		t.Error("not carried over")
	}
	if _, err := os.Stat(filepath.Join(other, "f")); err == nil {
		t.Error("still there")
	}
	c.want("bad_request", c.do(fields{"op": "file.move", "source": filepath.Join(other, "d"), "destination": "d"}))
}

func TestRemove(t *testing.T) {
	c := start(t)
	keep := t.TempDir()
	must(t, os.WriteFile(filepath.Join(keep, "keep"), nil, 0o644))
	c.put("d/e/f", "")
	c.put("d/g", "")
	must(t, os.Symlink(keep, filepath.Join(c.dir, "d/out")))
	must(t, os.Symlink(keep, filepath.Join(c.dir, "link")))
	must(t, syscall.Mkfifo(filepath.Join(c.dir, "d/fifo"), 0o644))
	c.want("not_empty", c.do(fields{"op": "file.remove", "path": "d"}))
	if a := c.want("", c.do(fields{"op": "file.remove", "path": "d", "recursive": true})); a.last()["removed"] != 6.0 {
		t.Errorf("%v", a.last())
	}
	c.want("", c.do(fields{"op": "file.remove", "path": "link", "recursive": true}))
	if _, err := os.Stat(filepath.Join(keep, "keep")); err != nil {
		t.Error("a link was followed:", err)
	}
	c.want("not_found", c.do(fields{"op": "file.remove", "path": "d", "recursive": true}))
	c.want("", c.do(fields{"op": "file.remove", "path": "d/x/y", "missing_ok": true}))
	must(t, os.Mkdir(filepath.Join(c.dir, "empty"), 0o755))
	c.want("", c.do(fields{"op": "file.remove", "path": "empty"}))
}

func TestRemoveManyFolders(t *testing.T) {
	c := start(t)
	for i := range 2*removeAtOnce + 10 {
		must(t, os.MkdirAll(filepath.Join(c.dir, "wide", fmt.Sprint(i)), 0o755))
	}
	if a := c.want("", c.do(fields{"op": "file.remove", "path": "wide", "recursive": true})); a.last()["removed"] != float64(2*removeAtOnce+11) {
		t.Errorf("%v", a.last())
	}
}

// While a folder in it is swapped for a link all the time, a removal never reaches what the link leads to.
func TestRemoveWhileFoldersAreSwapped(t *testing.T) {
	c := start(t)
	keep := t.TempDir()
	must(t, os.WriteFile(filepath.Join(keep, "keep"), nil, 0o644))
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		path := filepath.Join(c.dir, "d", "swap")
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.MkdirAll(filepath.Join(path, "x"), 0o755)
			_ = os.Rename(path, path+"2")
			_ = os.Symlink(keep, path)
			_ = os.Remove(path)
		}
	}()
	for range 200 {
		c.do(fields{"op": "file.remove", "path": "d", "recursive": true, "missing_ok": true})
	}
	close(stop)
	<-stopped
	if _, err := os.Stat(filepath.Join(keep, "keep")); err != nil {
		t.Error(err)
	}
}
