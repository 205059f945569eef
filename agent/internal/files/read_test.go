package files

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestRead(t *testing.T) {
	c := start(t)
	content := strings.Repeat("0123456789", 30000)
	c.put("f", content)
	c.put("empty", "")
	a := c.want("", c.do(fields{"op": "file.read", "path": "f"}))
	if string(a.data) != content || a.entry()["size"] != 300000.0 || a.last()["bytes"] != 300000.0 || a.last()["truncated"] != false {
		t.Errorf("%d bytes, %v", len(a.data), a.messages)
	}
	for _, row := range []struct {
		request   fields
		want      string
		truncated bool
	}{
		{fields{"offset": 5, "length": 7}, "5678901", false},
		{fields{"offset": 299998}, "89", false},
		{fields{"offset": 299998, "length": 100}, "89", false},
		{fields{"offset": 300000}, "", false},
		{fields{"offset": 1 << 62, "length": 1 << 62}, "", false},
		{fields{"length": 0}, "", false},
		{fields{"max_bytes": 4}, "0123", true},
		{fields{"max_bytes": 4, "length": 4}, "0123", false},
		{fields{"max_bytes": 4, "length": 3}, "012", false},
		{fields{"max_bytes": 2, "offset": 299998}, "89", false},
		{fields{"max_bytes": int64(1<<63 - 1), "offset": 299999}, "9", false},
	} {
		row.request["op"], row.request["path"] = "file.read", "f"
		a := c.want("", c.do(row.request))
		if string(a.data) != row.want || a.last()["truncated"] != row.truncated {
			t.Errorf("%v: %q, %v", row.request, a.data, a.last())
		}
	}
	if a := c.want("", c.do(fields{"op": "file.read", "path": "empty"})); len(a.data) != 0 || a.last()["bytes"] != 0.0 {
		t.Errorf("empty: %v", a)
	}
}

func TestReadRefusesWhatIsNoFile(t *testing.T) {
	c := start(t)
	must(t, syscall.Mkfifo(filepath.Join(c.dir, "fifo"), 0o644))
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	must(t, err)
	defer syscall.Close(fd)
	t.Chdir(c.dir) // a socket's path is short
	must(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: "socket"}))
	must(t, os.Symlink("/dev/zero", filepath.Join(c.dir, "zero")))
	for path, code := range map[string]string{"fifo": "not_regular", "socket": "not_regular", "zero": "not_regular", "/dev/zero": "not_regular", ".": "is_a_directory"} {
		begin := time.Now()
		c.want(code, c.do(fields{"op": "file.read", "path": path}))
		if time.Since(begin) > time.Second {
			t.Errorf("%s took %v", path, time.Since(begin))
		}
		if path != "." {
			c.want(code, c.do(fields{"op": "file.write", "path": path}, []byte("x")))
			c.want(code, c.do(fields{"op": "archive.read", "path": path}))
			c.want(code, c.do(fields{"op": "file.search", "path": path, "pattern": "x"}))
		}
	}
	if a := c.want("", c.do(fields{"op": "archive.read", "path": "."})); a.last()["skipped"] != 2.0 || a.last()["files"] != 1.0 {
		t.Errorf("archive: %v", a.last())
	}
	c.want("", c.do(fields{"op": "file.search", "path": ".", "pattern": "x"}))
}

func TestReadProc(t *testing.T) {
	c := start(t)
	a := c.want("", c.do(fields{"op": "file.read", "path": "/proc/self/status"}))
	if !strings.Contains(string(a.data), "Pid:") || a.last()["truncated"] != false {
		t.Errorf("%q, %v", a.data, a.last())
	}
	if a = c.want("", c.do(fields{"op": "file.read", "path": "/proc/self/status", "max_bytes": 5})); string(a.data) != "Name:" || a.last()["truncated"] != true {
		t.Errorf("%q, %v", a.data, a.last())
	}
}

func TestReadSparse(t *testing.T) {
	c := start(t)
	f, err := os.Create(filepath.Join(c.dir, "sparse"))
	must(t, err)
	if err := f.Truncate(1 << 40); err != nil {
		t.Skip(err)
	}
	_, err = f.WriteAt([]byte("end"), 1<<40-3)
	must(t, err)
	must(t, f.Close())
	a := c.want("", c.do(fields{"op": "file.read", "path": "sparse", "offset": 1<<40 - 5}))
	if string(a.data) != "\x00\x00end" || a.offset != 1<<40-5 {
		t.Errorf("%q at %d", a.data, a.offset)
	}
	if a = c.want("", c.do(fields{"op": "file.read", "path": "sparse", "max_bytes": 1000})); len(a.data) != 1000 || a.last()["truncated"] != true {
		t.Errorf("%d bytes, %v", len(a.data), a.last())
	}
	c.want("too_large", c.do(fields{"op": "archive.read", "path": ".", "max_bytes": 1 << 20}))
	c.want("", c.do(fields{"op": "file.search", "path": ".", "pattern": "end"}))
	// A reader that goes away in the middle of a terabyte.
	s := c.open(fields{"op": "file.read", "path": "sparse"})
	_, err = s.Recv()
	must(t, err)
	s.Reset("cancelled", "")
}

func TestReadOfGrowingFileEnds(t *testing.T) {
	c := start(t)
	for _, first := range []int{1000, 0} {
		path := c.put("log", strings.Repeat("x", first))
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		must(t, err)
		var stop atomic.Bool
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			block := bytes.Repeat([]byte("x"), 100000)
			for size := 0; !stop.Load() && size < 1<<29; size += len(block) {
				_, _ = f.Write(block)
			}
		}()
		a := c.want("", c.do(fields{"op": "file.read", "path": "log"}))
		stop.Store(true)
		<-stopped
		f.Close()
		size := a.entry()["size"].(float64)
		if size > 0 && float64(len(a.data)) != size {
			t.Errorf("size %v, %d bytes", size, len(a.data))
		}
		if first == 0 && size == 0 && len(a.data) > 1<<28 {
			t.Errorf("followed an empty file for %d bytes", len(a.data))
		}
	}
}
