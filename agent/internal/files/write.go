package files

import (
	"crypto/rand"
	"encoding/hex"
	"io"
	"os"
	"syscall"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/paths"
	"sandlot.dev/agent/internal/files/sys"
)

const (
	maxLinks     = 40 // symlinks followed to a file's real place, as the kernel has it
	newFileMode  = 0o644
	temporary    = ".sandlot-" // how the name of a file that is being written starts
	createBefore = 8           // attempts at a free temporary name
)

// place is where a file is to stand: a folder that is held open, and the name in it.
type place struct {
	fd    int
	path  string
	base  string
	old   syscall.Stat_t
	found bool // old is what stands there
}

func (p *place) close() { syscall.Close(p.fd) }

// openPlace opens the folder of path, made first if parents says so, and looks at what stands there.
func openPlace(path string, parents bool) (*place, error) {
	folder, base := paths.Split(path)
	if base == "" {
		return nil, syscall.EISDIR
	}
	fd, err := sys.OpenParent(folder)
	if err == syscall.ENOENT && parents {
		if err := os.MkdirAll(folder, sys.NewFolderMode); err != nil {
			return nil, err
		}
		fd, err = sys.OpenParent(folder)
	}
	if err != nil {
		return nil, failure.At(folder, err)
	}
	p := &place{fd: fd, path: path, base: base}
	p.old, err = sys.Lstatat(fd, base)
	p.found = err == nil
	if err != nil && err != syscall.ENOENT {
		p.close()
		return nil, failure.At(path, err)
	}
	return p, nil
}

// followedPlace is the place that path leads to, through links at its end too.
func followedPlace(path string, parents bool) (*place, error) {
	for range maxLinks {
		p, err := openPlace(path, parents)
		if err != nil || !p.found || p.old.Mode&syscall.S_IFMT != syscall.S_IFLNK {
			return p, err
		}
		target, err := sys.Readlinkat(p.fd, p.base)
		p.close()
		switch {
		case err == syscall.EINVAL:
			continue // it is no link any more
		case err == nil && target == "":
			return nil, failure.At(path, syscall.ENOENT)
		case err != nil:
			return nil, failure.At(path, err)
		case target[0] != '/':
			folder, _ := paths.Split(path)
			target = folder + "/" + target
		}
		path = paths.Tidy(target)
	}
	return nil, failure.At(path, syscall.ELOOP)
}

// write serves file.write.
func (c *call) write() error {
	var q struct {
		Path      paths.Path `json:"path"`
		Mode      *uint32    `json:"mode"`
		Parents   *bool      `json:"parents"`
		Exclusive bool       `json:"exclusive"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	path, err := c.resolve(q.Path)
	if err != nil {
		return err
	}
	parents := q.Parents == nil || *q.Parents
	find := followedPlace
	if q.Exclusive {
		find = openPlace // whatever stands there, link or not, is in the way
	}
	p, err := find(path, parents)
	if err != nil {
		return err
	}
	defer p.close()
	mode := uint32(newFileMode)
	if p.found {
		if q.Exclusive {
			return failure.At(path, syscall.EEXIST)
		}
		if err := sys.MustBeRegular(p.old.Mode); err != nil {
			return failure.At(path, err)
		}
		mode = p.old.Mode
	}
	if q.Mode != nil {
		mode = *q.Mode
	}
	in := &input{stream: c.stream}
	st, err := writeBeside(p, mode&sys.Permissions, q.Exclusive, in.next)
	if err != nil {
		return failure.At(path, err)
	}
	c.stream.Reply(entryAnswer{appendEntry(nil, path, paths.Base(path), &st, "")})
	return nil
}

// writeBeside writes pieces until io.EOF into a new file beside a place and then puts it there. Whatever goes wrong,
// the new file is gone and the old one as it was.
func writeBeside(p *place, mode uint32, exclusive bool, next func() ([]byte, error)) (st syscall.Stat_t, err error) {
	fd, name, err := createTemporary(p.fd)
	if err != nil {
		return st, err
	}
	placed := false
	defer func() {
		syscall.Close(fd)
		if !placed {
			_ = sys.Unlinkat(p.fd, name, 0) // user code may have been faster; then there is nothing left to remove
		}
	}()
	for {
		piece, err := next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return st, err
		}
		if err := sys.WriteAll(fd, piece); err != nil {
			return st, err
		}
	}
	if err := syscall.Fchmod(fd, mode); err != nil {
		return st, err
	}
	if exclusive {
		err = sys.RenameNew(p.fd, name, p.fd, p.base)
	} else {
		err = syscall.Renameat(p.fd, name, p.fd, p.base)
	}
	if err != nil {
		return st, err
	}
	placed = true
	return st, syscall.Fstat(fd, &st)
}

func createTemporary(dirfd int) (fd int, name string, err error) {
	for range createBefore {
		var random [8]byte
		_, _ = rand.Read(random[:]) // never fails
		name = temporary + hex.EncodeToString(random[:])
		fd, err = sys.Openat(dirfd, name, sys.CreateFlags, 0o600)
		if err != syscall.EEXIST {
			break
		}
	}
	return fd, name, err
}
