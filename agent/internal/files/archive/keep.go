package archive

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"syscall"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/sys"
	"sandlot.dev/agent/internal/files/tree"
	"sandlot.dev/agent/internal/frame"
)

const (
	keptBits    = 0o7777   // of a mode, what a copy has too
	linkedBytes = 64 << 20 // of names of files that have several
	perLinked   = 100      // bytes that such a file needs besides
)

// Mark stands for everything under a folder: it differs if anything was written there since. A user can set neither
// an inode's number nor the time of its last change, so no content is read for it. Order does not matter.
type Mark [sha256.Size]byte

func (m *Mark) add(rel string, facts ...int64) {
	data := append([]byte(rel), 0)
	for _, fact := range facts {
		data = binary.LittleEndian.AppendUint64(data, uint64(fact))
	}
	for i, b := range sha256.Sum256(data) {
		m[i] ^= b
	}
}

func (m *Mark) entry(rel string, st *syscall.Stat_t) {
	m.add(rel, int64(st.Ino), int64(st.Mode), int64(st.Nlink), st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec)
}

// root leaves out what changes when the folder is given to a user.
func (m *Mark) root(st *syscall.Stat_t) {
	m.add(".", int64(st.Ino), int64(st.Mode), st.Mtim.Sec, st.Mtim.Nsec)
}

// MarkOf marks a folder.
func MarkOf(folder string) (Mark, error) {
	var mark Mark
	fd, st, err := sys.OpenFolder(sys.AtFdcwd, folder)
	if err != nil {
		return mark, err
	}
	mark.root(&st)
	return mark, wholeWalk(fd, func(n tree.Node) error {
		st, err := sys.Lstatat(n.Dirfd, n.Name)
		if err == nil {
			mark.entry(n.Rel, &st)
		}
		return nil // what has gone meanwhile is missing from the mark
	})
}

// wholeWalk fails if it has to leave anything out.
func wholeWalk(fd int, visit func(tree.Node) error) error {
	w := tree.Walker{MaxRel: tree.MaxPath, Over: func() bool { return false }, Visit: visit}
	if err := w.Run(fd); err != nil {
		return err
	}
	if w.Truncated || w.Omitted > 0 {
		return failure.New("bad_request", "some folders cannot be read, or lie deeper than %d bytes of names", tree.MaxPath)
	}
	return nil
}

// Kept is what Keep has written.
type Kept struct {
	Mark  Mark
	Bytes int64 // of content
	Files int64 // entries
}

// keeper writes a tar with everything that Restore brings back.
type keeper struct {
	Kept
	limits  Limits
	tar     *tar.Writer
	content []byte
	linked  map[uint64]string // the first name of each file that has several
	names   int               // bytes in linked
}

// Keep writes a tar of a folder that nobody changes meanwhile: files, folders and links with their modes and times.
// Sockets and FIFOs are nothing without their processes, and are left out.
func Keep(to io.Writer, folder string, limits Limits) (Kept, error) {
	buffer := bufio.NewWriterSize(to, frame.MaxData)
	k := &keeper{limits: limits, tar: tar.NewWriter(buffer), content: make([]byte, frame.MaxData), linked: map[uint64]string{}}
	err := k.keep(folder)
	if err == nil {
		err = k.tar.Close()
	}
	if err == nil {
		err = buffer.Flush()
	}
	return k.Kept, err
}

func (k *keeper) keep(folder string) error {
	fd, st, err := sys.OpenFolder(sys.AtFdcwd, folder)
	if err != nil {
		return err
	}
	k.Mark.root(&st)
	if err := k.write(".", tar.TypeDir, &st, ""); err != nil {
		syscall.Close(fd)
		return err
	}
	return wholeWalk(fd, k.add)
}

func (k *keeper) add(n tree.Node) error {
	st, err := sys.Lstatat(n.Dirfd, n.Name)
	if err != nil {
		return failure.At(n.Rel, err)
	}
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		err = k.write(n.Rel, tar.TypeDir, &st, "")
	case syscall.S_IFLNK:
		var target string
		if target, err = sys.Readlinkat(n.Dirfd, n.Name); err == nil {
			err = k.write(n.Rel, tar.TypeSymlink, &st, target)
		}
	case syscall.S_IFREG:
		err = k.addFile(n, &st)
	}
	if err != nil {
		return failure.At(n.Rel, err)
	}
	k.Mark.entry(n.Rel, &st)
	return nil
}

func (k *keeper) write(name string, kind byte, st *syscall.Stat_t, target string) error {
	if k.Files++; k.limits.MaxFiles > 0 && k.Files > k.limits.MaxFiles {
		return failure.New("too_large", "there are more than %d files", k.limits.MaxFiles)
	}
	header := headerOf(name, st)
	header.Mode, header.Uid, header.Gid = int64(st.Mode&keptBits), 0, 0 // a copy has another owner
	header.Typeflag, header.Linkname = kind, target
	header.Format = tar.FormatPAX // or times lose their fractions
	switch kind {
	case tar.TypeDir:
		header.Name += "/"
	case tar.TypeReg:
		header.Size = st.Size
	}
	return k.tar.WriteHeader(header)
}

func (k *keeper) addFile(n tree.Node, st *syscall.Stat_t) error {
	if first, ok := k.linked[st.Ino]; ok {
		return k.write(n.Rel, tar.TypeLink, st, first)
	}
	if st.Nlink > 1 {
		if k.names += len(n.Rel) + perLinked; k.names > linkedBytes {
			return failure.New("too_large", "too many files have several names")
		}
		k.linked[st.Ino] = n.Rel
	}
	if k.Bytes += st.Size; k.Bytes > k.limits.MaxBytes {
		return failure.New("too_large", "the files have more than %d bytes", k.limits.MaxBytes)
	}
	fd, now, err := sys.OpenRegular(n.Dirfd, n.Name, syscall.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	if now.Ino != st.Ino || now.Size != st.Size {
		return failure.New("conflict", "it changes while it is copied")
	}
	if st.Size > 0 {
		sys.WriteBack(fd)
	}
	if err := k.write(n.Rel, tar.TypeReg, st, ""); err != nil {
		return err
	}
	return k.copyContent(fd, st.Size)
}

func (k *keeper) copyContent(fd int, size int64) error {
	for offset := int64(0); offset < size; {
		n, err := sys.ReadAt(fd, k.content[:min(int64(len(k.content)), size-offset)], offset)
		if err != nil {
			return err
		}
		if n == 0 {
			return failure.New("conflict", "it changes while it is copied")
		}
		if _, err := k.tar.Write(k.content[:n]); err != nil {
			return err
		}
		offset += int64(n)
	}
	return nil
}

// String is how a mark is noted.
func (m Mark) String() string { return fmt.Sprintf("%x", m[:]) }
