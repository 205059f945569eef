package sys

import (
	"syscall"

	"sandlot.dev/agent/internal/files/failure"
)

// TypeName is the protocol's word for what a mode says a thing is.
func TypeName(mode uint32) string {
	switch mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		return "file"
	case syscall.S_IFDIR:
		return "directory"
	case syscall.S_IFLNK:
		return "symlink"
	case syscall.S_IFIFO:
		return "fifo"
	case syscall.S_IFSOCK:
		return "socket"
	}
	return "device"
}

// MustBeRegular says with which error a thing is refused that is not a regular file.
func MustBeRegular(mode uint32) error {
	switch mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		return nil
	case syscall.S_IFDIR:
		return syscall.EISDIR
	}
	return failure.New("not_regular", "it is a %s, not a regular file", TypeName(mode))
}

// OpenRegular opens a regular file to read. It looks before it opens, because even opening a FIFO for a moment
// would break whoever writes to it, and looks again after, because the name may have been given to another.
func OpenRegular(dirfd int, name string, flags int) (int, syscall.Stat_t, error) {
	nofollow := 0
	if flags&syscall.O_NOFOLLOW != 0 {
		nofollow = NoFollow
	}
	st, err := Fstatat(dirfd, name, nofollow)
	if err == nil {
		err = MustBeRegular(st.Mode)
	}
	if err != nil {
		return -1, st, err
	}
	fd, err := Openat(dirfd, name, ReadFlags|flags, 0)
	if err != nil {
		return -1, st, err
	}
	if err = syscall.Fstat(fd, &st); err == nil {
		err = MustBeRegular(st.Mode)
	}
	if err != nil {
		syscall.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}
