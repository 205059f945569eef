package files

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandlot.dev/agent/internal/files/inotify"
	"sandlot.dev/agent/internal/mux"
)

type watcher struct {
	c *client
	s *mux.Stream
}

func (c *client) watching(request fields) *watcher {
	c.t.Helper()
	request["op"] = "file.watch"
	s := c.open(request)
	item, err := s.Recv()
	must(c.t, err)
	if decodeMessage(c.t, item.Payload)["ready"] != true {
		c.t.Fatalf("%s", item.Payload)
	}
	return &watcher{c, s}
}

// until gathers events as "type path" until one of them comes.
func (w *watcher) until(last string) map[string]int {
	w.c.t.Helper()
	seen := map[string]int{}
	timer := time.AfterFunc(20*time.Second, func() { w.s.Reset("cancelled", "too late") })
	defer timer.Stop()
	for {
		item, err := w.s.Recv()
		if err != nil {
			w.c.t.Fatalf("%v before %q, after %v", err, last, seen)
		}
		m := decodeMessage(w.c.t, item.Payload)
		if m["overflow"] == true {
			seen["overflow"]++
		}
		events, _ := m["events"].([]any)
		if len(events) > watchEvents {
			w.c.t.Errorf("%d events", len(events))
		}
		for _, e := range events {
			event := e.(map[string]any)
			rel, err := filepath.Rel(w.c.dir, event["path"].(string))
			must(w.c.t, err)
			seen[event["type"].(string)+" "+rel]++
		}
		if seen[last] > 0 {
			return seen
		}
	}
}

func TestWatch(t *testing.T) {
	c := start(t)
	c.put("old/f", "")
	at := func(name string) string { return filepath.Join(c.dir, name) }
	w := c.watching(fields{"path": ".", "recursive": true})
	c.put("old/f", "x")
	must(t, os.Chmod(at("old/f"), 0o600))
	must(t, os.Rename(at("old/f"), at("g")))
	must(t, os.Remove(at("g")))
	seen := w.until("remove g")
	for _, event := range []string{"write old/f", "chmod old/f", "rename old/f", "create g"} {
		if seen[event] == 0 {
			t.Errorf("no %s in %v", event, seen)
		}
	}
	// New folders are followed, and what came to be in them before that is told.
	c.put("n1/n2/n3/f", "")
	w.until("create n1/n2/n3/f")
	c.put("n1/n2/n3/f", "y")
	w.until("write n1/n2/n3/f")
	must(t, os.Rename(at("n1/n2"), at("moved")))
	w.until("create moved")
	c.put("moved/n3/late", "")
	w.until("create moved/n3/late")
	out := t.TempDir()
	must(t, os.Rename(at("moved"), filepath.Join(out, "gone")))
	must(t, os.WriteFile(filepath.Join(out, "gone/n3/unseen"), nil, 0o644))
	c.put("end", "")
	if seen := w.until("create end"); seen["create moved/n3/unseen"] > 0 || seen["rename moved"] == 0 {
		t.Errorf("%v", seen)
	}
	must(t, w.s.End())
	c.want("", c.gather(w.s))
}

func TestWatchNotRecursive(t *testing.T) {
	c := start(t)
	c.put("d/f", "")
	w := c.watching(fields{"path": "."})
	c.put("d/g", "")
	c.put("end", "")
	if seen := w.until("create end"); seen["create d/g"] > 0 {
		t.Errorf("%v", seen)
	}
	w.s.Reset("cancelled", "")
}

func TestWatchOfAFileEndsWithIt(t *testing.T) {
	c := start(t)
	path := c.put("f", "")
	w := c.watching(fields{"path": "f"})
	c.put("f", "x")
	w.until("write f")
	must(t, os.Remove(path))
	w.until("remove f")
	must(t, w.s.End())
	c.want("", c.gather(w.s))
}

func TestWatchOverflow(t *testing.T) {
	if _, err := os.Stat("/proc/sys/fs/inotify/max_queued_events"); err != nil {
		t.Skip("this kernel's queues have no end:", err)
	}
	c := start(t)
	w := c.watching(fields{"path": ".", "recursive": true})
	// Nobody reads, so credit ends, the helper waits, and the kernel's queue runs over.
	a, b := filepath.Join(c.dir, "a"), filepath.Join(c.dir, "b")
	must(t, os.WriteFile(a, nil, 0o644))
	for range 60000 {
		must(t, os.Rename(a, b))
		must(t, os.Rename(b, a))
	}
	w.until("overflow")
	w.s.Reset("cancelled", "")
}

func TestWatchIsBounded(t *testing.T) {
	c := start(t)
	for i := range inotify.MaxWatches + 1 {
		must(t, os.Mkdir(filepath.Join(c.dir, fmt.Sprint(i)), 0o755))
	}
	c.want("resource_exhausted", c.do(fields{"op": "file.watch", "path": ".", "recursive": true}))
}
