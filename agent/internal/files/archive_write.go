package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"syscall"

	"sandlot.dev/agent/internal/frame"
)

const (
	ownerOnly  = 0o700  // what a folder needs so that its owner can fill it
	maxClosing = 100000 // folders of an archive that may lack it
	// What an archive unpacks to, unless the request says otherwise.
	defaultUnpacked = 10 << 30
)

var zeroBlock [4096]byte

// unpacker unpacks a tar under a folder. A confinement finds the folder of each entry, so no name and no link leads
// out of it; the entry itself is then made by its bare name in that folder, new and never through a link.
type unpacker struct {
	call     *call
	root     confinement
	here     int    // the folder of the last entry, -1 at first
	hereName string // its path from the root, "." for the root
	content  []byte
	closing  []closedFolder // folders to be closed to their owner in the end
	files    int64
	bytes    int64
	maxFiles int64 // 0 = no limit
	maxBytes int64
}

type closedFolder struct {
	name string
	mode uint32
}

// archiveWrite serves archive.write. What was unpacked before something went wrong stays.
func (c *call) archiveWrite() error {
	var q struct {
		Path     jsonPath `json:"path"`
		MaxBytes int64    `json:"max_bytes"`
		MaxFiles int64    `json:"max_files"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	path, err := c.resolve(q.Path)
	if err != nil {
		return err
	}
	if q.MaxBytes < 0 || q.MaxFiles < 0 {
		return fail("bad_request", "max_bytes and max_files must not be negative")
	}
	if q.MaxBytes == 0 {
		q.MaxBytes = defaultUnpacked
	}
	if err := makeFolder(path, true, newDirMode); err != nil {
		if hasCode(err, "exists") {
			err = at(path, syscall.ENOTDIR)
		}
		return err
	}
	rootFd, err := openat(atFdcwd, path, openFile|syscall.O_DIRECTORY, 0)
	if err != nil {
		return at(path, err)
	}
	defer syscall.Close(rootFd)
	u := &unpacker{call: c, root: confinement{rootFd}, here: -1, content: make([]byte, frame.MaxData), maxFiles: q.MaxFiles, maxBytes: q.MaxBytes}
	defer u.leave()
	if err := u.unpack(&input{stream: c.stream}); err != nil {
		return err
	}
	c.stream.Reply(map[string]any{"files": u.files, "bytes": u.bytes})
	return nil
}

func (u *unpacker) unpack(in *input) error {
	reader := tar.NewReader(in)
	for {
		header, err := reader.Next()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = u.entry(header, reader)
		}
		if err != nil {
			return tarError(err)
		}
	}
	for { // what fills up the last block
		if _, err := in.next(); err == io.EOF {
			return u.closeFolders()
		} else if err != nil {
			return err
		}
	}
}

// tarError tells a broken tar from what went wrong beneath it.
func tarError(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fail("bad_request", "the archive is broken: %v", err)
	}
	return err
}

func (u *unpacker) entry(header *tar.Header, content io.Reader) error {
	if header.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := inside(header.Name)
	if err != nil {
		return err
	}
	if u.files++; u.maxFiles > 0 && u.files > u.maxFiles {
		return fail("too_large", "the archive has more than %d entries", u.maxFiles)
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return u.makeFolder(name, uint32(header.Mode)&permissions)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.makeFile(name, header, content)
	case tar.TypeSymlink:
		if header.Linkname == "" || len(header.Linkname) >= maxPath || strings.IndexByte(header.Linkname, 0) >= 0 {
			return fail("bad_request", "%q in the archive is a link to nothing", header.Name)
		}
		return u.make(name, func(dirfd int, base string) error { return symlinkat(header.Linkname, dirfd, base) })
	case tar.TypeLink:
		return u.makeHardLink(name, header.Linkname)
	}
	return fail("bad_request", "%q in the archive is neither file, folder nor link", header.Name)
}

// enter goes to a folder under the root, made if it is not there. Entries come folder by folder, so mostly this is
// where the last entry was, or one level down.
func (u *unpacker) enter(name string) (int, error) {
	if u.here >= 0 && name == u.hereName {
		return u.here, nil
	}
	next, err := u.open(name)
	if err != nil {
		return -1, err
	}
	u.leave()
	u.here, u.hereName = next, name
	return next, nil
}

func (u *unpacker) open(name string) (int, error) {
	if folder, base := cut(name); u.here >= 0 && folder == u.hereName && base != "." {
		if err := syscall.Mkdirat(u.here, base, newDirMode); err == nil || err == syscall.EEXIST {
			if fd, _, err := openFolder(u.here, base); err == nil {
				return fd, nil
			}
		}
		// A link, a file or no right to: the long way tells.
	}
	return u.root.open(name, true)
}

func (u *unpacker) leave() {
	if u.here >= 0 {
		syscall.Close(u.here)
		u.here = -1
	}
}

// make makes something new at a name, in place of what was there.
func (u *unpacker) make(name string, create func(dirfd int, base string) error) error {
	folder, base := cut(name)
	if base == "." {
		return fail("bad_request", "the archive has an entry in place of its own root")
	}
	dirfd, err := u.enter(folder)
	if err != nil {
		return err
	}
	for range createBefore {
		if err = create(dirfd, base); err != syscall.EEXIST {
			break
		}
		if err := unlinkat(dirfd, base, 0); err != nil && err != syscall.ENOENT {
			return at(name, err)
		}
	}
	return at(name, err)
}

func (u *unpacker) makeFolder(name string, mode uint32) error {
	dirfd, err := u.enter(name)
	if err != nil || name == "." {
		return err
	}
	if mode&ownerOnly != ownerOnly {
		if len(u.closing) == maxClosing {
			return fail("too_large", "the archive has more than %d folders that their owner may not use", maxClosing)
		}
		u.closing = append(u.closing, closedFolder{name, mode})
		mode |= ownerOnly
	}
	if err := syscall.Fchmod(dirfd, mode); err != syscall.EPERM {
		return at(name, err)
	}
	return nil // a folder of another user, which was there before
}

// closeFolders gives folders the modes under which they could not have been filled, the deepest first.
func (u *unpacker) closeFolders() error {
	u.leave()
	for i := len(u.closing) - 1; i >= 0; i-- {
		fd, err := u.root.open(u.closing[i].name, false)
		if err != nil {
			return err
		}
		err = syscall.Fchmod(fd, u.closing[i].mode)
		syscall.Close(fd)
		if err != nil && err != syscall.EPERM {
			return at(u.closing[i].name, err)
		}
	}
	return nil
}

func (u *unpacker) makeFile(name string, header *tar.Header, content io.Reader) error {
	if header.Size > u.maxBytes-u.bytes {
		return fail("too_large", "the archive unpacks to more than %d bytes", u.maxBytes)
	}
	return u.make(name, func(dirfd int, base string) error {
		// With its last mode at once: the helper has no umask, and a call less for each of thousands of files is felt.
		fd, err := openat(dirfd, base, createFile, uint32(header.Mode)&permissions)
		if err != nil {
			return err
		}
		defer syscall.Close(fd)
		err = u.fill(fd, header, content)
		if err != nil {
			_ = unlinkat(dirfd, base, 0) // half a file is none; the error says why
		}
		return err
	})
}

// fill leaves out what is zero: a sparse file stays sparse, and a small archive of a huge one takes no room.
func (u *unpacker) fill(fd int, header *tar.Header, content io.Reader) error {
	var size, hole int64
	for {
		n, err := io.ReadFull(content, u.content)
		if err == io.ErrUnexpectedEOF && size+int64(n) == header.Size {
			err = io.EOF
		}
		if isZero(u.content[:n]) {
			hole += int64(n)
		} else {
			if hole > 0 {
				if _, seekErr := syscall.Seek(fd, hole, io.SeekCurrent); seekErr != nil {
					return seekErr
				}
				hole = 0
			}
			if writeErr := writeAll(fd, u.content[:n]); writeErr != nil {
				return writeErr
			}
		}
		size += int64(n)
		u.bytes += int64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if hole > 0 {
		if err := syscall.Ftruncate(fd, size); err != nil {
			return err
		}
	}
	return setTimes(fd, header.ModTime)
}

func isZero(p []byte) bool {
	for len(p) >= len(zeroBlock) {
		if !bytes.Equal(p[:len(zeroBlock)], zeroBlock[:]) {
			return false
		}
		p = p[len(zeroBlock):]
	}
	return bytes.Equal(p, zeroBlock[:len(p)])
}

// makeHardLink links to a regular file that is in the root already.
func (u *unpacker) makeHardLink(name, target string) error {
	target, err := inside(target)
	if err != nil {
		return err
	}
	folder, base := cut(target)
	from, err := u.root.open(folder, false)
	if err != nil {
		return err
	}
	defer syscall.Close(from)
	st, err := lstatat(from, base)
	if err == nil && st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		err = fail("bad_request", "%q in the archive is a link to no regular file", name)
	}
	if err != nil {
		return at(target, err)
	}
	if name == target {
		return nil
	}
	return u.make(name, func(dirfd int, newBase string) error {
		return linkat(from, base, dirfd, newBase)
	})
}
