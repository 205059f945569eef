package walls

import (
	"syscall"
	"testing"
)

// judge runs a filter as the kernel does. It is never installed here.
func judge(t *testing.T, filter []instruction, data map[uint32]uint32) uint32 {
	t.Helper()
	var a uint32
	for at := 0; at < len(filter); at++ {
		i := filter[at]
		jump := int(i.no)
		switch i.code {
		case 0x20:
			a, jump = data[i.offset], 0
		case 0x15:
			if a == i.offset {
				jump = int(i.yes)
			}
		case 0x45:
			if a&i.offset != 0 {
				jump = int(i.yes)
			}
		case 0x06:
			return i.offset
		default:
			t.Fatalf("instruction %d: unknown code %#x", at, i.code)
		}
		at += jump
	}
	t.Fatal("the filter runs past its end")
	return 0
}

func TestFilterRefusesNamespacesAndNothingElse(t *testing.T) {
	const eperm, enosys = actErrno | uint32(syscall.EPERM), actErrno | uint32(syscall.ENOSYS)
	for machine, n := range calls {
		filter := namespaceFilter(n)
		for at, i := range filter {
			if at+1+int(max(i.yes, i.no)) >= len(filter) && i.code != 0x06 {
				t.Errorf("%s: instruction %d jumps out", machine, at)
			}
		}
		for name, c := range map[string]struct{ arch, call, flags, want uint32 }{
			"another machine":  {n.arch + 1, 0, 0, eperm},
			"unshare":          {n.arch, n.unshare, 0, eperm},
			"setns":            {n.arch, n.setns, 0, eperm},
			"clone3":           {n.arch, n.clone3, 0, enosys},
			"fork":             {n.arch, n.clone, uint32(syscall.SIGCHLD), actAllow},
			"thread":           {n.arch, n.clone, 0x3d0f00, actAllow},
			"user namespace":   {n.arch, n.clone, syscall.CLONE_NEWUSER | uint32(syscall.SIGCHLD), eperm},
			"cgroup namespace": {n.arch, n.clone, 0x02000000, eperm},
			"mount namespace":  {n.arch, n.clone, syscall.CLONE_NEWNS, eperm},
			"any other":        {n.arch, 1000, syscall.CLONE_NEWUSER, actAllow},
		} {
			if got := judge(t, filter, map[uint32]uint32{0: c.call, 4: c.arch, 16: c.flags}); got != c.want {
				t.Errorf("%s, %s: %#x", machine, name, got)
			}
		}
	}
}
