package files

import (
	"io"
	"os"
	"syscall"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/paths"
	"sandlot.dev/agent/internal/files/sys"
	"sandlot.dev/agent/internal/frame"
)

// mkdir serves file.mkdir.
func (c *call) mkdir() error {
	var q struct {
		Path    paths.Path `json:"path"`
		Parents bool       `json:"parents"`
		Mode    *uint32    `json:"mode"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	path, err := c.resolve(q.Path)
	if err != nil {
		return err
	}
	mode := uint32(sys.NewFolderMode)
	if q.Mode != nil {
		mode = *q.Mode & sys.Permissions
	}
	if err := makeFolder(path, q.Parents, mode); err != nil {
		return err
	}
	return c.replyEntry(path)
}

// makeFolder makes a folder with exactly that mode, whatever the umask; with parents, one that is there is fine.
func makeFolder(path string, parents bool, mode uint32) error {
	folder, base := paths.Split(path)
	if parents {
		if st, err := sys.Fstatat(sys.AtFdcwd, path, 0); err == nil {
			if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
				return failure.At(path, syscall.EEXIST)
			}
			return nil
		}
		if err := os.MkdirAll(folder, sys.NewFolderMode); err != nil {
			return err
		}
	}
	if base == "" {
		return failure.At(path, syscall.EEXIST)
	}
	dirfd, err := sys.OpenParent(folder)
	if err != nil {
		return failure.At(folder, err)
	}
	defer syscall.Close(dirfd)
	if err := syscall.Mkdirat(dirfd, base, mode); err != nil {
		if err == syscall.EEXIST && parents {
			// Made by another in this moment: fine, if it is a folder.
			if st, statErr := sys.Fstatat(dirfd, base, 0); statErr == nil && st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
				return nil
			}
		}
		return failure.At(path, err)
	}
	fd, _, err := sys.OpenFolder(dirfd, base)
	if err == syscall.EACCES {
		return nil // a mode that its owner cannot read; the umask can only have made it narrower
	}
	if err != nil {
		return failure.At(path, err)
	}
	defer syscall.Close(fd)
	return failure.At(path, syscall.Fchmod(fd, mode))
}

// move serves file.move. Links at the end of either path are themselves moved or replaced.
func (c *call) move() error {
	var q struct {
		Source      paths.Path `json:"source"`
		Destination paths.Path `json:"destination"`
		Overwrite   bool       `json:"overwrite"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	source, err := c.resolve(q.Source)
	if err != nil {
		return err
	}
	destination, err := c.resolve(q.Destination)
	if err != nil {
		return err
	}
	from, err := openPlace(source, false)
	if err != nil {
		return err
	}
	defer from.close()
	to, err := openPlace(destination, false)
	if err != nil {
		return err
	}
	defer to.close()
	switch {
	case !from.found:
		return failure.At(source, syscall.ENOENT)
	case to.found && !q.Overwrite:
		return failure.At(destination, syscall.EEXIST)
	}
	if q.Overwrite {
		err = syscall.Renameat(from.fd, from.base, to.fd, to.base)
	} else {
		err = sys.RenameNew(from.fd, from.base, to.fd, to.base)
	}
	if err == syscall.EXDEV {
		err = c.moveAcross(from, to, !q.Overwrite)
	}
	if err != nil {
		return failure.At(source+" to "+destination, err)
	}
	return c.replyEntry(destination)
}

// moveAcross moves a regular file to another file system: copied beside its new place, put there, and removed here.
func (c *call) moveAcross(from, to *place, exclusive bool) error {
	fd, st, err := sys.OpenRegular(from.fd, from.base, syscall.O_NOFOLLOW)
	if err != nil {
		if failure.Has(err, "is_a_directory") || failure.Has(err, "not_regular") {
			return syscall.EXDEV // only files are carried over
		}
		return err
	}
	defer syscall.Close(fd)
	buf := make([]byte, frame.MaxData)
	offset := int64(0)
	next := func() ([]byte, error) {
		if c.over() {
			return nil, failure.New("cancelled", "the stream is over")
		}
		n, err := sys.ReadAt(fd, buf, offset)
		if err == nil && n == 0 {
			err = io.EOF
		}
		offset += int64(n)
		return buf[:n], err
	}
	if _, err := writeBeside(to, st.Mode&sys.Permissions, exclusive, next); err != nil {
		return err
	}
	return sys.Unlinkat(from.fd, from.base, 0)
}
