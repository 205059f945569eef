package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"syscall"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/paths"
	"sandlot.dev/agent/internal/files/sys"
	"sandlot.dev/agent/internal/frame"
)

const (
	ownerOnly  = 0o700  // what a folder needs so that its owner can fill it
	maxClosing = 100000 // folders of an archive that may lack it
	attempts   = 8      // to make an entry whose name another takes at the same moment
)

var zeroBlock [4096]byte

// Limits bound what a tar unpacks to.
type Limits struct {
	MaxBytes int64
	MaxFiles int64 // 0 = no limit
}

// Unpacked is what a tar has unpacked to.
type Unpacked struct{ Files, Bytes int64 }

// unpacker unpacks a tar under a folder. A confinement finds the folder of each entry, so no name and no link leads
// out of it; the entry itself is then made by its bare name in that folder, new and never through a link.
type unpacker struct {
	Unpacked
	Limits
	root     confinement
	here     int    // the folder of the last entry, -1 at first
	hereName string // its path from the root, "." for the root
	content  []byte
	closing  []closedFolder // folders to be closed to their owner in the end
}

type closedFolder struct {
	name string
	mode uint32
}

// Unpack unpacks a tar under the folder that root is open on. What was unpacked before something went wrong stays.
func Unpack(in io.Reader, root int, limits Limits) (Unpacked, error) {
	u := &unpacker{Limits: limits, root: confinement{root}, here: -1, content: make([]byte, frame.MaxData)}
	defer u.leave()
	err := u.unpack(in)
	return u.Unpacked, err
}

func (u *unpacker) unpack(in io.Reader) error {
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
	if _, err := io.Copy(io.Discard, in); err != nil { // what fills up the last block
		return err
	}
	return u.closeFolders()
}

// tarError tells a broken tar from what went wrong beneath it.
func tarError(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return failure.New("bad_request", "the archive is broken: %v", err)
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
	if u.Files++; u.MaxFiles > 0 && u.Files > u.MaxFiles {
		return failure.New("too_large", "the archive has more than %d entries", u.MaxFiles)
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return u.makeFolder(name, uint32(header.Mode)&sys.Permissions)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.makeFile(name, header, content)
	case tar.TypeSymlink:
		if header.Linkname == "" || len(header.Linkname) >= paths.MaxBytes || strings.IndexByte(header.Linkname, 0) >= 0 {
			return failure.New("bad_request", "%q in the archive is a link to nothing", header.Name)
		}
		return u.make(name, func(dirfd int, base string) error { return sys.Symlinkat(header.Linkname, dirfd, base) })
	case tar.TypeLink:
		return u.makeHardLink(name, header.Linkname)
	}
	return failure.New("bad_request", "%q in the archive is neither file, folder nor link", header.Name)
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
		if err := syscall.Mkdirat(u.here, base, sys.NewFolderMode); err == nil || err == syscall.EEXIST {
			if fd, _, err := sys.OpenFolder(u.here, base); err == nil {
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
		return failure.New("bad_request", "the archive has an entry in place of its own root")
	}
	dirfd, err := u.enter(folder)
	if err != nil {
		return err
	}
	for range attempts {
		if err = create(dirfd, base); err != syscall.EEXIST {
			break
		}
		if err := sys.Unlinkat(dirfd, base, 0); err != nil && err != syscall.ENOENT {
			return failure.At(name, err)
		}
	}
	return failure.At(name, err)
}

func (u *unpacker) makeFolder(name string, mode uint32) error {
	dirfd, err := u.enter(name)
	if err != nil || name == "." {
		return err
	}
	if mode&ownerOnly != ownerOnly {
		if len(u.closing) == maxClosing {
			return failure.New("too_large", "the archive has more than %d folders that their owner may not use", maxClosing)
		}
		u.closing = append(u.closing, closedFolder{name, mode})
		mode |= ownerOnly
	}
	if err := syscall.Fchmod(dirfd, mode); err != syscall.EPERM {
		return failure.At(name, err)
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
			return failure.At(u.closing[i].name, err)
		}
	}
	return nil
}

func (u *unpacker) makeFile(name string, header *tar.Header, content io.Reader) error {
	if header.Size > u.MaxBytes-u.Bytes {
		return failure.New("too_large", "the archive unpacks to more than %d bytes", u.MaxBytes)
	}
	return u.make(name, func(dirfd int, base string) error {
		// With its last mode at once: the helper has no umask, and a call less for each of thousands of files is felt.
		fd, err := sys.Openat(dirfd, base, sys.CreateFlags, uint32(header.Mode)&sys.Permissions)
		if err != nil {
			return err
		}
		defer syscall.Close(fd)
		err = u.fill(fd, header, content)
		if err != nil {
			_ = sys.Unlinkat(dirfd, base, 0) // half a file is none; the error says why
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
			if writeErr := sys.WriteAll(fd, u.content[:n]); writeErr != nil {
				return writeErr
			}
		}
		size += int64(n)
		u.Bytes += int64(n)
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
	return sys.SetTimes(fd, header.ModTime)
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
	st, err := sys.Lstatat(from, base)
	if err == nil && st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		err = failure.New("bad_request", "%q in the archive is a link to no regular file", name)
	}
	if err != nil {
		return failure.At(target, err)
	}
	if name == target {
		return nil
	}
	return u.make(name, func(dirfd int, newBase string) error {
		return sys.Linkat(from, base, dirfd, newBase)
	})
}
