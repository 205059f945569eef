package files

import (
	"container/heap"
	"slices"
	"syscall"
)

const (
	listDefault = 1000
	listLimit   = 10000
)

// largestFirst is a heap that keeps the smallest names of a folder: the largest kept one is at hand to be dropped.
type largestFirst []string

func (h largestFirst) Len() int           { return len(h) }
func (h largestFirst) Less(i, j int) bool { return h[i] > h[j] }
func (h largestFirst) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *largestFirst) Push(x any)        { *h = append(*h, x.(string)) }
func (h *largestFirst) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// page reads the first limit names of a folder after a name, in order of their bytes, and says whether there are
// more. However large the folder, it holds limit names.
func (c *call) page(fd int, after string, limit int) (names []string, more bool, err error) {
	kept := largestFirst{}
	seen := 0
	err = eachName(fd, func(name []byte, _ byte) error {
		if seen++; seen%4096 == 0 && c.over() {
			return fail("cancelled", "the stream is over")
		}
		switch {
		case after != "" && string(name) <= after:
		case len(kept) < limit:
			heap.Push(&kept, string(name))
		case string(name) < kept[0]:
			more = true
			kept[0] = string(name)
			heap.Fix(&kept, 0)
		default:
			more = true
		}
		return nil
	})
	slices.Sort(kept)
	return kept, more, err
}

// list serves file.list.
func (c *call) list() error {
	var q struct {
		Path  jsonPath `json:"path"`
		After jsonPath `json:"after"`
		Limit int      `json:"limit"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	path, err := c.resolve(q.Path)
	if err != nil {
		return err
	}
	limit, err := limited(q.Limit, listDefault, listLimit)
	if err != nil {
		return err
	}
	fd, err := openat(atFdcwd, path, openFile|syscall.O_DIRECTORY, 0)
	if err != nil {
		return at(path, err)
	}
	defer syscall.Close(fd)
	names, more, err := c.page(fd, string(q.After), limit)
	if err != nil {
		return at(path, err)
	}
	out := batch{stream: c.stream, key: "entries"}
	var item []byte
	for _, name := range names {
		item, err = appendEntryAt(item[:0], fd, join(path, name), name)
		if err == syscall.ENOENT {
			continue // removed since its folder was read
		}
		if err != nil {
			return at(join(path, name), err)
		}
		if err := out.add(item); err != nil {
			return err
		}
	}
	last := map[string]any{"next": nil}
	if more {
		last["next"] = jsonPath(names[len(names)-1])
	}
	return out.finish(last)
}
