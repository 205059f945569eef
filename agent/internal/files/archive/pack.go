// Package archive packs a folder into a tar and unpacks one under a folder, whatever user code does there meanwhile and
// whatever the tar holds.
package archive

import (
	"archive/tar"
	"bufio"
	"io"
	"syscall"
	"time"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/paths"
	"sandlot.dev/agent/internal/files/sys"
	"sandlot.dev/agent/internal/files/tree"
	"sandlot.dev/agent/internal/frame"
)

// Packed is what has become of a folder or a file.
type Packed struct {
	Bytes   uint64 // of the tar
	Files   int64  // entries written
	Skipped int64  // what a tar cannot or the user may not hold: sockets, FIFOs, devices, unreadable files
}

// packer writes a tar of files, folders and links.
type packer struct {
	Packed
	out     boundedWriter
	buffer  *bufio.Writer
	tar     *tar.Writer
	content []byte // one piece of a file under way
	over    func() bool
}

// boundedWriter stops at a limit.
type boundedWriter struct {
	to    io.Writer
	sent  uint64
	limit uint64 // 0 = none
}

func (w *boundedWriter) Write(p []byte) (int, error) {
	if w.limit > 0 && w.sent+uint64(len(p)) > w.limit {
		return 0, failure.New("too_large", "the archive has more than %d bytes", w.limit)
	}
	n, err := w.to.Write(p)
	w.sent += uint64(n)
	return n, err
}

// Pack writes a tar of what stands at path, of at most limit bytes (0: any number), until over says that nobody waits.
func Pack(to io.Writer, path string, limit uint64, over func() bool) (Packed, error) {
	p := &packer{out: boundedWriter{to: to, limit: limit}, content: make([]byte, frame.MaxData), over: over}
	p.buffer = bufio.NewWriterSize(&p.out, frame.MaxData)
	p.tar = tar.NewWriter(p.buffer)
	err := p.pack(path)
	p.Bytes = p.out.sent
	return p.Packed, err
}

func (p *packer) pack(path string) error {
	st, err := sys.Fstatat(sys.AtFdcwd, path, 0)
	if err != nil {
		return err
	}
	if st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		fd, err := sys.Openat(sys.AtFdcwd, path, sys.ReadFlags|syscall.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		w := tree.Walker{MaxRel: tree.MaxPath, Over: p.over, Visit: p.add}
		if err := w.Run(fd); err != nil {
			return err
		}
		p.Skipped += int64(w.Omitted)
	} else {
		fd, st, err := sys.OpenRegular(sys.AtFdcwd, path, 0)
		if err != nil {
			return err
		}
		defer syscall.Close(fd)
		if err := p.addFile(fd, paths.Base(path), &st); err != nil {
			return err
		}
	}
	if err := p.tar.Close(); err != nil {
		return err
	}
	return p.buffer.Flush()
}

// add packs one thing that the walk comes by.
func (p *packer) add(n tree.Node) error {
	if n.Kind == tree.File {
		fd, st, err := sys.OpenRegular(n.Dirfd, n.Name, syscall.O_NOFOLLOW)
		if err != nil {
			return p.skip(err)
		}
		defer syscall.Close(fd)
		return p.addFile(fd, n.Rel, &st)
	}
	st, err := sys.Lstatat(n.Dirfd, n.Name)
	if err != nil {
		return p.skip(err)
	}
	header := headerOf(n.Rel, &st)
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		header.Typeflag = tar.TypeDir
		header.Name += "/"
	case syscall.S_IFLNK:
		header.Typeflag = tar.TypeSymlink
		if header.Linkname, err = sys.Readlinkat(n.Dirfd, n.Name); err != nil {
			return p.skip(err)
		}
	default:
		p.Skipped++
		return nil
	}
	p.Files++
	return p.tar.WriteHeader(header)
}

// skip passes over what could not be opened; what is not there any more is not even missed.
func (p *packer) skip(err error) error {
	if err != syscall.ENOENT {
		p.Skipped++
	}
	return nil
}

func headerOf(name string, st *syscall.Stat_t) *tar.Header {
	return &tar.Header{Name: name, Mode: int64(st.Mode & sys.Permissions), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec)}
}

// addFile packs an open file with the size it has now: what it loses meanwhile is zeros, what it gains is left out.
func (p *packer) addFile(fd int, name string, st *syscall.Stat_t) error {
	if p.out.limit > 0 && uint64(st.Size) > p.out.limit {
		return failure.New("too_large", "the archive has more than %d bytes", p.out.limit)
	}
	header := headerOf(name, st)
	header.Typeflag, header.Size = tar.TypeReg, st.Size
	if err := p.tar.WriteHeader(header); err != nil {
		return err
	}
	for offset := int64(0); offset < st.Size; {
		piece := p.content[:min(int64(len(p.content)), st.Size-offset)]
		n, err := sys.ReadAt(fd, piece, offset)
		if err != nil {
			return failure.New("internal", "%s: %v", name, err)
		}
		if n == 0 {
			clear(piece)
			n = len(piece)
		}
		if _, err := p.tar.Write(piece[:n]); err != nil {
			return err
		}
		offset += int64(n)
	}
	p.Files++
	return nil
}
