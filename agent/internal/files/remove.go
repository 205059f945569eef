package files

import (
	"syscall"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/paths"
	"sandlot.dev/agent/internal/files/sys"
	"sandlot.dev/agent/internal/files/tree"
)

const (
	removeAtOnce  = 4096 // names of a folder's folders that are held while they are emptied
	removeRetries = 100  // failures to remove an emptied folder, with no other progress between them
)

// remove serves file.remove.
func (c *call) remove() error {
	var q struct {
		Path      paths.Path `json:"path"`
		Recursive bool       `json:"recursive"`
		MissingOK bool       `json:"missing_ok"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	path, err := c.resolve(q.Path)
	if err != nil {
		return err
	}
	folder, base := paths.Split(path)
	if base == "" || base == ".." {
		return failure.New("bad_request", "%s cannot be removed", path)
	}
	r := remover{over: c.over}
	dirfd, err := sys.OpenParent(folder)
	if err == nil {
		defer syscall.Close(dirfd)
		err = r.remove(dirfd, base, q.Recursive)
	}
	if err == syscall.ENOENT && q.MissingOK {
		err = nil
	}
	if err != nil {
		return failure.At(path, err)
	}
	c.stream.Reply(map[string]any{"removed": r.removed})
	return nil
}

// remover removes a name and all under it, following no link. It stops at the first thing that cannot be removed.
type remover struct {
	over        func() bool
	removed     int64
	removedThen int64 // removed when the last emptied folder could not be removed
	failures    int
}

func (r *remover) remove(dirfd int, name string, recursive bool) error {
	st, err := sys.Lstatat(dirfd, name)
	if err != nil {
		return err
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return r.unlink(dirfd, name, 0)
	}
	if recursive {
		fd, _, err := sys.OpenFolder(dirfd, name)
		if err != nil {
			return err
		}
		if err := r.empty(fd); err != nil {
			return err
		}
	}
	return r.unlink(dirfd, name, sys.AtRemovedir)
}

func (r *remover) unlink(dirfd int, name string, flags int) error {
	err := sys.Unlinkat(dirfd, name, flags)
	if err == nil {
		r.removed++
	}
	return err
}

// emptying is a level of a removal: the folder's name in the one above, and folders in it that still are to go.
type emptying struct {
	name    string
	folders []string
}

// empty removes everything in the folder that fd is open on, and closes fd. It holds names of a few folders per
// level, and reads a folder again from its start until nothing is left in it: some file systems leave out
// names when others go while a folder is read.
func (r *remover) empty(fd int) error {
	way, err := tree.NewDescent(fd)
	if err != nil {
		return err
	}
	defer way.Close()
	levels := []emptying{{}}
	for {
		here := &levels[len(levels)-1]
		if last := len(here.folders) - 1; last >= 0 {
			name := here.folders[last]
			here.folders = here.folders[:last]
			switch err := way.Enter(name); err {
			case nil:
				levels = append(levels, emptying{name: name})
			case syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP:
				// It is gone or no folder any more; the next reading sees what it is.
			default:
				return err
			}
			continue
		}
		before := r.removed
		if err := r.sweep(way.FD(), here); err != nil {
			return err
		}
		if len(here.folders) > 0 {
			continue
		}
		if len(levels) == 1 {
			if r.removed == before {
				return nil
			}
			continue
		}
		name := here.name
		levels = levels[:len(levels)-1]
		if err := way.Leave(); err != nil {
			return err
		}
		switch err := r.unlink(way.FD(), name, sys.AtRemovedir); err {
		case nil, syscall.ENOENT, syscall.ENOTDIR:
		case syscall.ENOTEMPTY: // filled again meanwhile; the next reading of the folder above finds it
			if err := r.stuck(); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// sweep reads a folder from its start, removes what is no folder, and gathers a few that are.
func (r *remover) sweep(fd int, here *emptying) error {
	if _, err := syscall.Seek(fd, 0, 0); err != nil {
		return err
	}
	seen := 0
	return tree.EachName(fd, func(raw []byte, kind byte) error {
		if seen++; seen%64 == 1 && r.over() {
			return failure.New("cancelled", "the stream is over")
		}
		name := string(raw)
		kind, err := tree.KindOf(fd, name, kind)
		if err != nil {
			return nil // it is gone
		}
		if kind == tree.Folder {
			if len(here.folders) < removeAtOnce {
				here.folders = append(here.folders, name)
			}
			return nil
		}
		if err := r.unlink(fd, name, 0); err != nil && err != syscall.ENOENT && err != syscall.EISDIR {
			return failure.At(name, err)
		}
		return nil
	})
}

// stuck gives up on a folder that cannot be emptied although nothing in it refuses to go.
func (r *remover) stuck() error {
	if r.removed != r.removedThen {
		r.removedThen, r.failures = r.removed, 0
	}
	if r.failures++; r.failures > removeRetries {
		return syscall.ENOTEMPTY
	}
	return nil
}
