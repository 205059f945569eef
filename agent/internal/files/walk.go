package files

import (
	"syscall"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/glob"
	"sandlot.dev/agent/internal/files/paths"
	"sandlot.dev/agent/internal/files/sys"
	"sandlot.dev/agent/internal/files/tree"
)

const walkLimit = 100000

// walk serves file.walk.
func (c *call) walk() error {
	var q struct {
		Path  paths.Path `json:"path"`
		Depth int        `json:"depth"`
		Glob  paths.Path `json:"glob"`
		Limit int        `json:"limit"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	path, err := c.resolve(q.Path)
	if err != nil {
		return err
	}
	limit, err := limited(q.Limit, walkLimit, walkLimit)
	if err != nil {
		return err
	}
	if q.Depth < 0 {
		return failure.New("bad_request", "depth is negative")
	}
	matches, err := glob.Compile(string(q.Glob))
	if err != nil {
		return err
	}
	fd, err := sys.Openat(sys.AtFdcwd, path, sys.ReadFlags|syscall.O_DIRECTORY, 0)
	if err != nil {
		return failure.At(path, err)
	}
	out := batch{stream: c.stream, key: "entries"}
	var item []byte
	found := 0
	w := tree.Walker{Depth: q.Depth, MaxRel: paths.MaxBytes - len(path) - 1, Over: c.over}
	w.Visit = func(n tree.Node) error {
		if !matches(n.Rel) {
			return nil
		}
		if found == limit {
			w.Truncated = true
			return tree.ErrEnough
		}
		var err error
		item, err = appendEntryAt(item[:0], n.Dirfd, paths.Join(path, n.Rel), n.Name)
		if err != nil {
			return nil // it is gone
		}
		found++
		return out.add(item)
	}
	if err := w.Run(fd); err != nil {
		if !failure.Has(err, "conflict") {
			return failure.At(path, err)
		}
		w.Truncated = true
	}
	return out.finish(map[string]any{"truncated": w.Truncated})
}
