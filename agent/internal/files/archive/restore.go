package archive

import (
	"archive/tar"
	"io"
	"syscall"
	"time"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/sys"
	"sandlot.dev/agent/internal/frame"
)

// restorer unpacks what Keep has written, with owner, modes and times. It must be root, in a folder that nobody else
// can reach.
type restorer struct {
	unpacker
	owner   int
	folders []restoredFolder // get what is theirs once they are full
}

type restoredFolder struct {
	name  string
	mode  uint32
	mtime time.Time
}

// Restore unpacks a tar under the folder that root is open on, and gives all of it to one owner.
func Restore(in io.Reader, root, owner int, limits Limits) (Unpacked, error) {
	u := unpacker{Limits: limits, root: confinement{root}, here: -1, content: make([]byte, frame.MaxData)}
	r := &restorer{unpacker: u, owner: owner}
	defer r.leave()
	err := r.restore(tar.NewReader(in))
	return r.Unpacked, err
}

func (r *restorer) restore(reader *tar.Reader) error {
	for {
		header, err := reader.Next()
		if err == io.EOF {
			return r.finishFolders()
		}
		if err == nil {
			err = r.add(header, reader)
		}
		if err != nil {
			return tarError(err)
		}
	}
}

func (r *restorer) add(header *tar.Header, content io.Reader) error {
	name, err := inside(header.Name)
	if err != nil {
		return err
	}
	mode := uint32(header.Mode) & keptBits
	if header.Typeflag == tar.TypeDir {
		r.folders = append(r.folders, restoredFolder{name, mode, header.ModTime})
		header.Mode = ownerOnly
	}
	if err := r.entry(header, content); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeSymlink:
		_, base := cut(name)
		return failure.At(name, r.finish(base, mode, header))
	}
	return nil
}

// finish gives a new file or link, in the folder that the restorer is in, what is its own. A change of the owner takes
// bits of the mode away, so that comes first.
func (r *restorer) finish(base string, mode uint32, header *tar.Header) error {
	if err := syscall.Fchownat(r.here, base, r.owner, r.owner, sys.NoFollow); err != nil {
		return err
	}
	if header.Typeflag != tar.TypeSymlink {
		if err := syscall.Fchmodat(r.here, base, mode, 0); err != nil {
			return err
		}
	}
	return sys.SetTimesAt(r.here, base, header.ModTime)
}

func (r *restorer) finishFolders() error {
	r.leave()
	for i := len(r.folders) - 1; i >= 0; i-- {
		if err := r.finishFolder(r.folders[i]); err != nil {
			return failure.At(r.folders[i].name, err)
		}
	}
	return nil
}

func (r *restorer) finishFolder(f restoredFolder) error {
	fd, err := r.root.open(f.name, false)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	if err := syscall.Fchown(fd, r.owner, r.owner); err != nil {
		return err
	}
	if err := syscall.Fchmod(fd, f.mode); err != nil {
		return err
	}
	return sys.SetTimes(fd, f.mtime)
}
