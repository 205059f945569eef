package exec

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"
)

// openPty makes a terminal that belongs to the given user: devpts gives it to whoever opens the master, so that the
// thread wears the user's file-system id for that moment. (It carries no signal permission, unlike setuid.)
func openPty(uid uint32, size Pty) (master, slave *os.File, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// gVisor has no setfsuid: the terminal is the agent's there, and works all the same through open descriptors.
	_, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, uintptr(uid), 0, 0)
	defer func() { _, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, 0, 0, 0) }()
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	var n, unlock uint32
	if err = ioctl(master, syscall.TIOCGPTN, unsafe.Pointer(&n)); err == nil {
		err = ioctl(master, syscall.TIOCSPTLCK, unsafe.Pointer(&unlock))
	}
	if err == nil {
		slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(int(n)), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err == nil {
		err = resize(master, size)
	}
	if err != nil {
		master.Close()
		if slave != nil {
			slave.Close()
		}
		return nil, nil, err
	}
	return master, slave, nil
}

func resize(master *os.File, size Pty) error {
	window := [4]uint16{size.Rows, size.Cols, 0, 0}
	return ioctl(master, syscall.TIOCSWINSZ, unsafe.Pointer(&window))
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	if err := conn.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(arg))
	}); err != nil {
		return err
	}
	if errno != 0 {
		return fmt.Errorf("ioctl %#x: %w", request, errno)
	}
	return nil
}
