package tree

import (
	"os"
	"strings"
	"testing"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/sys"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDescentRefusesAFolderThatWasMoved(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+strings.Repeat("/d", levelsOpen+5), 0o755))
	fd, _, err := sys.OpenFolder(sys.AtFdcwd, dir)
	must(t, err)
	way, err := NewDescent(fd)
	must(t, err)
	defer way.Close()
	for range levelsOpen + 5 {
		must(t, way.Enter("d"))
	}
	// The fifth folder goes elsewhere, and with it what is above the sixth.
	must(t, os.Rename(dir+strings.Repeat("/d", 4), dir+"/elsewhere"))
	for range levelsOpen + 5 {
		if err = way.Leave(); err != nil {
			break
		}
	}
	if !failure.Has(err, "conflict") {
		t.Errorf("came back up through a moved folder: %v", err)
	}
}
