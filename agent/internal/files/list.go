package files

import (
	"container/heap"
	"slices"
	"syscall"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/paths"
	"sandlot.dev/agent/internal/files/sys"
	"sandlot.dev/agent/internal/files/tree"
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
	err = tree.EachName(fd, func(name []byte, _ byte) error {
		if seen++; seen%4096 == 0 && c.over() {
			return failure.New("cancelled", "the stream is over")
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
		Path  paths.Path `json:"path"`
		After paths.Path `json:"after"`
		Limit int        `json:"limit"`
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
	fd, err := sys.Openat(sys.AtFdcwd, path, sys.ReadFlags|syscall.O_DIRECTORY, 0)
	if err != nil {
		return failure.At(path, err)
	}
	defer syscall.Close(fd)
	names, more, err := c.page(fd, string(q.After), limit)
	if err != nil {
		return failure.At(path, err)
	}
	out := batch{stream: c.stream, key: "entries"}
	var item []byte
	for _, name := range names {
		item, err = appendEntryAt(item[:0], fd, paths.Join(path, name), name)
		if err == syscall.ENOENT {
			continue // removed since its folder was read
		}
		if err != nil {
			return failure.At(paths.Join(path, name), err)
		}
		if err := out.add(item); err != nil {
			return err
		}
	}
	last := map[string]any{"next": nil}
	if more {
		last["next"] = paths.Path(names[len(names)-1])
	}
	return out.finish(last)
}
