// Package tree goes through folders that user code may be changing meanwhile: by descriptors, following no link, and
// holding no more of them than its bounds, however deep or wide they are.
package tree

import (
	"bytes"
	"encoding/binary"
	"syscall"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/sys"
)

// Types of folder entries as getdents64 tells them; unknown on some file systems.
const (
	unknown = 0
	Folder  = 4
	File    = 8
)

const (
	direntBuffer = 32 << 10 // bytes read of a folder at once
	direntHead   = 19       // inode, offset, record length, type
)

// EachName reads an open folder from where it stands and calls visit with each name but "." and "..". What it
// holds does not depend on how large the folder is. name is valid only during the call.
func EachName(fd int, visit func(name []byte, kind byte) error) error {
	buf := make([]byte, direntBuffer)
	for {
		n, err := syscall.ReadDirent(fd, buf)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n <= 0 {
			return nil
		}
		for rest := buf[:n]; len(rest) > direntHead; {
			size := int(binary.NativeEndian.Uint16(rest[16:18]))
			if size <= direntHead || size > len(rest) {
				return syscall.EIO
			}
			name, kind := rest[direntHead:size], rest[18]
			rest = rest[size:]
			if end := bytes.IndexByte(name, 0); end >= 0 {
				name = name[:end]
			}
			if len(name) == 0 || string(name) == "." || string(name) == ".." {
				continue
			}
			if err := visit(name, kind); err != nil {
				return err
			}
		}
	}
}

// KindOf settles the type of an entry whose folder did not tell it.
func KindOf(dirfd int, name string, kind byte) (byte, error) {
	if kind != unknown {
		return kind, nil
	}
	st, err := sys.Lstatat(dirfd, name)
	if err != nil {
		return 0, err
	}
	return byte(st.Mode & syscall.S_IFMT >> 12), nil
}

// levelsOpen is how many folders of a descent keep a descriptor, besides the first.
const levelsOpen = 32

// Descent is a way down through folders, by descriptors and without following links. Only the last levels are open;
// going back to one that is not goes through "..", and only if that is still the folder it was.
type Descent struct {
	levels []level
}

type level struct {
	fd       int // -1: closed to save descriptors
	dev, ino uint64
}

// NewDescent begins at the folder that fd is open on, and takes fd over.
func NewDescent(fd int) (*Descent, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return &Descent{levels: []level{{fd, uint64(st.Dev), st.Ino}}}, nil
}

// FD is the current folder.
func (d *Descent) FD() int    { return d.levels[len(d.levels)-1].fd }
func (d *Descent) depth() int { return len(d.levels) - 1 }

// Enter goes down into a folder of the current one.
func (d *Descent) Enter(name string) error {
	fd, st, err := sys.OpenFolder(d.FD(), name)
	if err != nil {
		return err
	}
	d.levels = append(d.levels, level{fd, uint64(st.Dev), st.Ino})
	if old := len(d.levels) - 1 - levelsOpen; old > 0 && d.levels[old].fd >= 0 {
		syscall.Close(d.levels[old].fd)
		d.levels[old].fd = -1
	}
	return nil
}

// Leave goes back up. It fails with conflict when the folder was moved meanwhile, so that nothing is ever done in
// a folder that the way down did not pass.
func (d *Descent) Leave() error {
	last := len(d.levels) - 1
	child, parent := d.levels[last], &d.levels[last-1]
	d.levels = d.levels[:last]
	defer syscall.Close(child.fd)
	if parent.fd >= 0 {
		return nil
	}
	fd, st, err := sys.OpenFolder(child.fd, "..")
	if err != nil {
		return err
	}
	if uint64(st.Dev) != parent.dev || st.Ino != parent.ino {
		syscall.Close(fd)
		return failure.New("conflict", "a folder was moved while it was being gone through")
	}
	parent.fd = fd
	return nil
}

// Close closes every folder that is still open.
func (d *Descent) Close() {
	for _, l := range d.levels {
		if l.fd >= 0 {
			syscall.Close(l.fd)
		}
	}
	d.levels = nil
}
