package files

import (
	"archive/tar"
	"bufio"
	"syscall"
	"time"

	"sandlot.dev/agent/internal/frame"
	"sandlot.dev/agent/internal/mux"
)

// packer writes a tar of files, folders and links to a stream.
type packer struct {
	call    *call
	out     streamWriter
	buffer  *bufio.Writer
	tar     *tar.Writer
	content []byte // one piece of a file under way
	files   int64  // entries written
	skipped int64  // what a tar cannot or the user may not hold: sockets, FIFOs, devices, unreadable files
}

// streamWriter sends what is written as DATA and stops at a limit.
type streamWriter struct {
	stream *mux.Stream
	sent   uint64
	limit  uint64 // 0 = none
}

func (w *streamWriter) Write(p []byte) (int, error) {
	if w.limit > 0 && w.sent+uint64(len(p)) > w.limit {
		return 0, fail("too_large", "the archive has more than %d bytes", w.limit)
	}
	if err := w.stream.SendData(0, w.sent, p); err != nil {
		return 0, err
	}
	w.sent += uint64(len(p))
	return len(p), nil
}

// archiveRead serves archive.read.
func (c *call) archiveRead() error {
	var q struct {
		Path     jsonPath `json:"path"`
		MaxBytes int64    `json:"max_bytes"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	path, err := c.resolve(q.Path)
	if err != nil {
		return err
	}
	if q.MaxBytes < 0 {
		return fail("bad_request", "max_bytes is negative")
	}
	p := &packer{call: c, out: streamWriter{stream: c.stream, limit: uint64(q.MaxBytes)}, content: make([]byte, frame.MaxData)}
	p.buffer = bufio.NewWriterSize(&p.out, frame.MaxData)
	p.tar = tar.NewWriter(p.buffer)
	if err := p.pack(path); err != nil {
		return at(path, err)
	}
	if err := c.stream.SendMessage(map[string]any{"bytes": p.out.sent, "files": p.files, "skipped": p.skipped}); err != nil {
		return err
	}
	c.stream.Finish()
	return nil
}

func (p *packer) pack(path string) error {
	st, err := fstatat(atFdcwd, path, 0)
	if err != nil {
		return err
	}
	if st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		fd, err := openat(atFdcwd, path, openFile|syscall.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		w := walker{maxRel: maxTreePath, over: p.call.over, visit: p.add}
		if err := w.run(fd); err != nil {
			return err
		}
		p.skipped += int64(w.omitted)
	} else {
		fd, st, err := openRegular(atFdcwd, path, 0)
		if err != nil {
			return err
		}
		defer syscall.Close(fd)
		if err := p.addFile(fd, nameOf(path), &st); err != nil {
			return err
		}
	}
	if err := p.tar.Close(); err != nil {
		return err
	}
	return p.buffer.Flush()
}

// add packs one thing that the walk comes by.
func (p *packer) add(n node) error {
	if n.kind == dtReg {
		fd, st, err := openRegular(n.dirfd, n.name, syscall.O_NOFOLLOW)
		if err != nil {
			return p.skip(err)
		}
		defer syscall.Close(fd)
		return p.addFile(fd, n.rel, &st)
	}
	st, err := lstatat(n.dirfd, n.name)
	if err != nil {
		return p.skip(err)
	}
	header := headerOf(n.rel, &st)
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		header.Typeflag = tar.TypeDir
		header.Name += "/"
	case syscall.S_IFLNK:
		header.Typeflag = tar.TypeSymlink
		if header.Linkname, err = readlinkat(n.dirfd, n.name); err != nil {
			return p.skip(err)
		}
	default:
		p.skipped++
		return nil
	}
	p.files++
	return p.tar.WriteHeader(header)
}

// skip passes over what could not be opened; what is not there any more is not even missed.
func (p *packer) skip(err error) error {
	if err != syscall.ENOENT {
		p.skipped++
	}
	return nil
}

func headerOf(name string, st *syscall.Stat_t) *tar.Header {
	return &tar.Header{Name: name, Mode: int64(st.Mode & permissions), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec)}
}

// addFile packs an open file with the size it has now: what it loses meanwhile is zeros, what it gains is left out.
func (p *packer) addFile(fd int, name string, st *syscall.Stat_t) error {
	if p.out.limit > 0 && uint64(st.Size) > p.out.limit {
		return fail("too_large", "the archive has more than %d bytes", p.out.limit)
	}
	header := headerOf(name, st)
	header.Typeflag, header.Size = tar.TypeReg, st.Size
	if err := p.tar.WriteHeader(header); err != nil {
		return err
	}
	for offset := int64(0); offset < st.Size; {
		piece := p.content[:min(int64(len(p.content)), st.Size-offset)]
		n, err := readAt(fd, piece, offset)
		if err != nil {
			return fail("internal", "%s: %v", name, err)
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
	p.files++
	return nil
}
