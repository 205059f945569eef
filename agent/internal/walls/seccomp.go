package walls

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"
)

const (
	prSetSeccomp      = 22
	seccompModeFilter = 2
	actAllow          = 0x7fff0000
	actErrno          = 0x00050000
	newNamespaces     = 0x7e020000 // every CLONE_NEW… that clone(2) takes
)

type callNumbers struct{ arch, clone, unshare, setns, clone3 uint32 }

// calls are the numbers that the filter needs, by machine.
var calls = map[string]callNumbers{
	"amd64": {0xc000003e, 56, 272, 308, 435},
	"arm64": {0xc00000b7, 220, 97, 268, 435},
}

type instruction struct {
	code   uint16
	yes    uint8
	no     uint8
	offset uint32
}

// refuseNamespaces installs a filter of the agent's own, for where the engine's is not applied (gVisor). A user
// namespace would give a command CAP_SETGID in it, and with that the means to drop the group that tells which exec it is.
// The filter is as short as can be: gVisor runs it at each system call.
func refuseNamespaces() error {
	n, ok := calls[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("no filter for %s", runtime.GOARCH)
	}
	filter := namespaceFilter(n)
	program := struct {
		length uint16
		filter *instruction
	}{uint16(len(filter)), &filter[0]}
	_, _, errno := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, prSetSeccomp, seccompModeFilter, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return fmt.Errorf("prctl(PR_SET_SECCOMP): %w", errno)
	}
	return nil
}

func namespaceFilter(n callNumbers) []instruction {
	const load, equal, set, answer = 0x20, 0x15, 0x45, 0x06
	return []instruction{
		{load, 0, 0, 4},                                   // 0: the machine
		{equal, 0, 7, n.arch},                             // 1: another one is refused
		{load, 0, 0, 0},                                   // 2: the call's number
		{equal, 5, 0, n.unshare},                          // 3
		{equal, 4, 0, n.setns},                            // 4
		{equal, 5, 0, n.clone3},                           // 5: as if the kernel did not have it; libraries fall back to clone
		{equal, 0, 3, n.clone},                            // 6
		{load, 0, 0, 16},                                  // 7: clone's flags
		{set, 0, 1, newNamespaces},                        // 8
		{answer, 0, 0, actErrno | uint32(syscall.EPERM)},  // 9
		{answer, 0, 0, actAllow},                          // 10
		{answer, 0, 0, actErrno | uint32(syscall.ENOSYS)}, // 11
	}
}
