package sys

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The way of kernels without the flag.
func TestRenameByLinkReplacesNothing(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"from", "g"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o644))
	}
	must(t, os.Mkdir(filepath.Join(dir, "folder"), 0o755))
	fd, err := OpenParent(dir)
	must(t, err)
	defer syscall.Close(fd)
	if err := renameNewByLink(fd, "from", fd, "g"); err != syscall.EEXIST {
		t.Error(err)
	}
	if err := renameNewByLink(fd, "folder", fd, "g"); err != syscall.EEXIST {
		t.Error(err)
	}
	must(t, renameNewByLink(fd, "from", fd, "to"))
	must(t, renameNewByLink(fd, "folder", fd, "folder2"))
}
