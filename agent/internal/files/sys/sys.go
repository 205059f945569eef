// Package sys has the *at calls that package syscall does not export. All work on a folder's descriptor and one name in
// it, so that nothing between two of them depends on a path that user code may be changing.
package sys

import (
	"syscall"
	"time"
	"unsafe"
)

const (
	AtFdcwd         = -100 // in place of a descriptor: names are paths
	AtRemovedir     = 0x200
	NoFollow        = 0x100 // for *at calls
	renameNoreplace = 1
	oPath           = 0x200000
	maxTarget       = 4096 // bytes of a link's target, as the kernel's PATH_MAX

	// ReadFlags never waits for the other end of a FIFO and never takes a terminal.
	ReadFlags = syscall.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC
	// CreateFlags makes a new file or fails.
	CreateFlags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_EXCL | syscall.O_NOFOLLOW | syscall.O_CLOEXEC

	Permissions   = 0o777 // of a mode, what a request or an archive may set
	NewFolderMode = 0o755
)

// retried repeats a call that a signal broke off.
func retried(call func() error) error {
	for {
		if err := call(); err != syscall.EINTR {
			return err
		}
	}
}

func errnoOf(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// Openat opens a name in a folder.
func Openat(dirfd int, name string, flags int, mode uint32) (fd int, err error) {
	err = retried(func() error {
		fd, err = syscall.Openat(dirfd, name, flags, mode)
		return err
	})
	return fd, err
}

// OpenFolder opens a folder and nothing else, following no link. It must not ask for that with O_DIRECTORY: together
// with O_NOFOLLOW, gVisor then follows the link all the same. (So does os.Root there, and os.RemoveAll.)
func OpenFolder(dirfd int, name string) (fd int, st syscall.Stat_t, err error) {
	fd, err = Openat(dirfd, name, ReadFlags|syscall.O_NOFOLLOW, 0)
	if err == syscall.ENXIO {
		err = syscall.ENOTDIR // a socket
	}
	if err != nil {
		return -1, st, err
	}
	if err = syscall.Fstat(fd, &st); err == nil && st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		err = syscall.ENOTDIR
	}
	if err != nil {
		syscall.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// OpenParent opens a folder only to name things in it: that needs no right to read it.
func OpenParent(folder string) (int, error) {
	return Openat(AtFdcwd, folder, oPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
}

// Fstatat looks at a name in a folder.
func Fstatat(dirfd int, name string, flags int) (st syscall.Stat_t, err error) {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return st, err
	}
	err = retried(func() error {
		_, _, e := syscall.Syscall6(sysFstatat, uintptr(dirfd), uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(&st)), uintptr(flags), 0, 0)
		return errnoOf(e)
	})
	return st, err
}

// Lstatat looks at what stands at a name itself, link or not.
func Lstatat(dirfd int, name string) (syscall.Stat_t, error) {
	return Fstatat(dirfd, name, NoFollow)
}

// Unlinkat removes a name from a folder.
func Unlinkat(dirfd int, name string, flags int) error {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return retried(func() error {
		_, _, e := syscall.Syscall(syscall.SYS_UNLINKAT, uintptr(dirfd), uintptr(unsafe.Pointer(p)), uintptr(flags))
		return errnoOf(e)
	})
}

// Readlinkat reads the target of a link.
func Readlinkat(dirfd int, name string) (string, error) {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return "", err
	}
	var buf [maxTarget]byte
	n, _, e := syscall.Syscall6(syscall.SYS_READLINKAT, uintptr(dirfd), uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(&buf[0])), maxTarget, 0, 0)
	if e != 0 {
		return "", e
	}
	return string(buf[:n]), nil
}

// Symlinkat makes a link.
func Symlinkat(target string, dirfd int, name string) error {
	t, err := syscall.BytePtrFromString(target)
	if err != nil {
		return err
	}
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, e := syscall.Syscall(syscall.SYS_SYMLINKAT, uintptr(unsafe.Pointer(t)), uintptr(dirfd), uintptr(unsafe.Pointer(p)))
	return errnoOf(e)
}

// twoNames runs Linkat or renameat2.
func twoNames(call uintptr, fromFd int, from string, toFd int, to string, flags uintptr) error {
	f, err := syscall.BytePtrFromString(from)
	if err != nil {
		return err
	}
	t, err := syscall.BytePtrFromString(to)
	if err != nil {
		return err
	}
	_, _, e := syscall.Syscall6(call, uintptr(fromFd), uintptr(unsafe.Pointer(f)), uintptr(toFd), uintptr(unsafe.Pointer(t)), flags, 0)
	return errnoOf(e)
}

// Linkat gives a file a second name.
func Linkat(fromFd int, from string, toFd int, to string) error {
	return twoNames(syscall.SYS_LINKAT, fromFd, from, toFd, to, 0)
}

// RenameNew renames without replacing anything. Kernels and file systems without that flag (gVisor) get a link and
// an unlink, which is as safe; only a folder there is checked first and renamed after, with a gap between.
func RenameNew(fromFd int, from string, toFd int, to string) error {
	err := twoNames(sysRenameat2, fromFd, from, toFd, to, renameNoreplace)
	if err != syscall.EINVAL && err != syscall.ENOSYS {
		return err
	}
	return renameNewByLink(fromFd, from, toFd, to)
}

func renameNewByLink(fromFd int, from string, toFd int, to string) error {
	st, err := Lstatat(fromFd, from)
	if err != nil {
		return err
	}
	if st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		if _, err := Lstatat(toFd, to); err != syscall.ENOENT {
			if err == nil {
				err = syscall.EEXIST
			}
			return err
		}
		return syscall.Renameat(fromFd, from, toFd, to)
	}
	if err := Linkat(fromFd, from, toFd, to); err != nil {
		return err
	}
	return Unlinkat(fromFd, from, 0)
}

// SetTimes sets an open file's times to the moment when.
func SetTimes(fd int, when time.Time) error {
	ts := syscall.Timespec{Sec: when.Unix(), Nsec: int64(when.Nanosecond())}
	times := [2]syscall.Timespec{ts, ts}
	_, _, e := syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
	return errnoOf(e)
}

// SetTimesAt sets the times of what stands at a name itself, link or not.
func SetTimesAt(dirfd int, name string, when time.Time) error {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	ts := syscall.Timespec{Sec: when.Unix(), Nsec: int64(when.Nanosecond())}
	times := [2]syscall.Timespec{ts, ts}
	_, _, e := syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(dirfd), uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(&times)), NoFollow, 0, 0)
	return errnoOf(e)
}

// WriteBack writes a file's content to the disk. From then on, even a write through memory that a process has mapped
// changes the file's times again. A file system that cannot loses only that.
func WriteBack(fd int) {
	const waitBefore, write, waitAfter = 1, 2, 4
	_ = syscall.SyncFileRange(fd, 0, 0, waitBefore|write|waitAfter)
}

// WriteAll writes to a regular file.
func WriteAll(fd int, p []byte) error {
	for len(p) > 0 {
		n, err := syscall.Write(fd, p)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// ReadAt reads an open file at an offset; 0 bytes are its end.
func ReadAt(fd int, p []byte, offset int64) (n int, err error) {
	err = retried(func() error {
		n, err = syscall.Pread(fd, p, offset)
		return err
	})
	return max(n, 0), err
}
