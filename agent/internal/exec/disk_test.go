package exec

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// onSmallDisk gives the registry's commands a workspace of a megabyte.
func onSmallDisk(t *testing.T) *Registry {
	r := testRegistry(t)
	if fullDisks(r.setup.Workspace)[1] {
		t.Skip("this machine's /tmp is full")
	}
	err := syscall.Mount("tmpfs", r.setup.Workspace, "tmpfs", 0, "size=1m,mode=1777")
	if errors.Is(err, syscall.EPERM) {
		t.Skip("may not mount here")
	}
	must(t, err)
	t.Cleanup(func() { must(t, syscall.Unmount(r.setup.Workspace, syscall.MNT_DETACH)) })
	return r
}

const fillsSilently = "head -c 2000000 /dev/zero 2>/dev/null >fill"

func shellCommand(id, command string) Request {
	// Half of the limit is more than a pipe holds, so the last words of one channel outlast what is still in the other.
	return Request{ExecID: id, Argv: []string{"sh", "-c", command}, OutputLimit: 400_000}
}

func TestOnlyTheCommandThatMeetsAFullDiskSaysSo(t *testing.T) {
	r := onSmallDisk(t)
	steps := []struct {
		name, command string
		full          bool
	}{
		{"before", "false", false},
		{"fills it and says nothing", fillsSilently, true},
		{"fails for another reason", "false", false},
		{"has nothing to say of its disk", "ls /nowhere", false},
		{"says so", "head -c 10000 /dev/zero >again || exit 1", true},
		{"gets by with what it has", "head -c 10000 /dev/zero >again; true", false},
		{"makes room", "rm fill", false},
		{"says so and cleans up", "head -c 2000000 /dev/zero >fill || { rm fill; exit 3; }", true},
		{"fails afterwards", "false", false},
	}
	for i, step := range steps {
		if got := run(t, r, shellCommand(string(rune('a'+i)), step.command)); got.DiskFull != step.full {
			t.Errorf("%s: disk_full is %v, %+v", step.name, got.DiskFull, got)
		}
	}
}

func TestACommandIsNotBlamedForItsNeighboursFullDisk(t *testing.T) {
	r := onSmallDisk(t)
	fails := start(t, r, shellCommand("waits", "until test -e go; do sleep 0.01; done; exit 4"))
	if got := run(t, r, shellCommand("fills", "echo >go; head -c 2000000 /dev/zero >fill")); !got.DiskFull {
		t.Errorf("the one that filled the disk: %+v", got)
	}
	if got := wait(t, fails); got.DiskFull || got.Code != 4 {
		t.Errorf("its neighbour: %+v", got)
	}
}

func TestFailuresOfAShellCommandOnAFullDisk(t *testing.T) {
	r := onSmallDisk(t)
	q := func(id, command string) Request {
		return Request{ExecID: id, Command: command, Shell: "s", OutputLimit: 100_000}
	}
	for i, step := range []struct {
		command string
		full    bool
	}{{fillsSilently, true}, {"false", false}, {"head -c 10000 /dev/zero >again", true}, {"false", false}} {
		if got := run(t, r, q(string(rune('a'+i)), step.command)); got.DiskFull != step.full {
			t.Errorf("%s: %+v", step.command, got)
		}
	}
}

func TestWordsOfAFullDisk(t *testing.T) {
	for text, full := range map[string]bool{
		"dd: error writing 'x': No space left on device":                  true,
		"write x: no space left on device":                                true,
		"dd: error writing 'x': Disk quota exceeded":                      true,
		"OSError: [Errno 122] Disk quota exceeded: 'x'":                   true,
		"Error: EDQUOT: disk quota exceeded, write":                       true,
		"Error: ENOSPC: no space left on device, write":                   true,
		"Error: ENOSPC: System limit for number of file watchers reached": false,
		"No such file or directory":                                       false,
		"":                                                                false,
	} {
		if mentionsNoRoom([]byte(text)) != full {
			t.Errorf("%q: not %v", text, full)
		}
	}
}

func TestAnOldMessageFarAboveTheEndIsNoReason(t *testing.T) {
	r := testRegistry(t)
	log := filepath.Join(r.setup.Workspace, "log")
	must(t, os.WriteFile(log, []byte("No space left on device\n"), 0o644))
	for i, step := range []struct {
		command string
		full    bool
	}{
		{"cat log; exit 1", true}, // nothing tells this from a message of its own
		{"cat log; head -c 50000 /dev/zero; exit 1", false},
		{"cat log; exit 0", false},
		{"head -c 50000 /dev/zero; cat log; exit 1", true},
		{"head -c 500000 /dev/zero; cat log >&2; exit 1", true},
		{"cat log >&2; head -c 50000 /dev/zero; exit 1", true}, // the last words on stderr
	} {
		if got := run(t, r, shellCommand(string(rune('a'+i)), step.command)); got.DiskFull != step.full {
			t.Errorf("%s: disk_full is %v", step.command, got.DiskFull)
		}
	}
}
