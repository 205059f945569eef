package archive_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandlot.dev/agent/internal/files/archive"
	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/sys"
)

const plenty = 1 << 40

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// everything is a folder with whatever a file can be.
func everything(t *testing.T) string {
	if os.Geteuid() != 0 {
		t.Skip("only root reads what its owner may not, and gives files away")
	}
	dir := filepath.Join(t.TempDir(), "from")
	must(t, os.MkdirAll(filepath.Join(dir, "deep", "shut"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "one"), []byte("one"), 0o640))
	must(t, os.Link(filepath.Join(dir, "one"), filepath.Join(dir, "deep", "hard")))
	must(t, os.Symlink("/nowhere", filepath.Join(dir, "deep", "bad\xff")))
	must(t, os.WriteFile(filepath.Join(dir, "deep", "shut", "in"), []byte("in"), 0o600))
	hole, err := os.Create(filepath.Join(dir, "hole"))
	must(t, err)
	must(t, hole.Truncate(1<<20))
	_, err = hole.WriteAt([]byte("x"), 500_000)
	must(t, err)
	must(t, hole.Close())
	must(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	must(t, os.Chmod(filepath.Join(dir, "one"), 0o640|os.ModeSetuid))
	must(t, os.Chmod(filepath.Join(dir, "deep", "shut", "in"), 0))
	when := time.Unix(981_173_106, 500_000_001)
	must(t, os.Chtimes(filepath.Join(dir, "one"), when, when))
	must(t, os.Chmod(filepath.Join(dir, "deep", "shut"), 0o500))
	must(t, os.Chtimes(filepath.Join(dir, "deep"), when, when))
	return dir
}

func restored(t *testing.T, kept []byte, limits archive.Limits) (string, error) {
	dir := t.TempDir()
	fd, _, err := sys.OpenFolder(sys.AtFdcwd, dir)
	must(t, err)
	defer syscall.Close(fd)
	_, err = archive.Restore(bytes.NewReader(kept), fd, os.Getuid(), limits)
	return dir, err
}

func describe(t *testing.T, dir string) string {
	var lines strings.Builder
	must(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		must(t, err)
		st := info.Sys().(*syscall.Stat_t)
		rel, _ := filepath.Rel(dir, path)
		target, _ := os.Readlink(path)
		content := []byte{}
		if info.Mode().IsRegular() && st.Mode&0o777 != 0 {
			content, err = os.ReadFile(path)
			must(t, err)
		}
		if info.Mode()&os.ModeNamedPipe == 0 {
			links := st.Nlink
			if info.IsDir() {
				links = 0
			}
			fmt.Fprintf(&lines, "%q %o %d %v %q %x\n", rel, st.Mode, links, info.ModTime(), target, content)
		}
		return nil
	}))
	return lines.String()
}

func TestWhatIsKeptComesBackAsItWas(t *testing.T) {
	dir := everything(t)
	var kept bytes.Buffer
	told, err := archive.Keep(&kept, dir, archive.Limits{MaxBytes: plenty})
	must(t, err)
	must(t, os.Remove(filepath.Join(dir, "fifo"))) // which changes the time of its folder
	again, err := restored(t, kept.Bytes(), archive.Limits{MaxBytes: plenty})
	must(t, err)
	want, got := describe(t, dir), describe(t, again)
	if want = want[strings.IndexByte(want, '\n'):]; want != got[strings.IndexByte(got, '\n'):] {
		t.Errorf("kept\n%s, restored\n%s", want, got)
	}
	var st syscall.Stat_t
	must(t, syscall.Stat(filepath.Join(again, "hole"), &st))
	if st.Blocks*512 >= st.Size {
		t.Errorf("the hole takes %d bytes", st.Blocks*512)
	}
	if told.Files != 8 {
		t.Errorf("kept %d entries", told.Files)
	}
}

func TestMarksDifferAfterEveryChange(t *testing.T) {
	dir := everything(t)
	var kept bytes.Buffer
	told, err := archive.Keep(&kept, dir, archive.Limits{MaxBytes: plenty})
	must(t, err)
	mark := func() archive.Mark {
		mark, err := archive.MarkOf(dir)
		must(t, err)
		return mark
	}
	must(t, os.Remove(filepath.Join(dir, "fifo")))
	if told.Mark == mark() {
		t.Error("a file that went was not noticed")
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	changes := map[string]func() error{
		"write":   func() error { return os.WriteFile(at("hole"), []byte("y"), 0o600) },
		"mode":    func() error { return os.Chmod(at("one"), 0o600) },
		"times":   func() error { return os.Chtimes(at("one"), time.Unix(1, 0), time.Unix(1, 0)) },
		"rename":  func() error { return os.Rename(at("one"), at("two")) },
		"link":    func() error { return os.Link(at("two"), at("three")) },
		"folder":  func() error { return os.Mkdir(at("new"), 0o700) },
		"root":    func() error { return os.Chmod(dir, 0o700) },
		"removal": func() error { return os.Remove(at("three")) },
	}
	for _, name := range []string{"write", "mode", "times", "rename", "link", "folder", "root", "removal"} {
		before := mark()
		if before != mark() {
			t.Fatal("a mark differs without a change")
		}
		must(t, changes[name]())
		if before == mark() {
			t.Errorf("%s: the mark is the same", name)
		}
	}
}

func TestWhatIsTooLargeIsNotKept(t *testing.T) {
	dir := everything(t)
	for name, limits := range map[string]archive.Limits{"bytes": {MaxBytes: 1000}, "files": {MaxBytes: plenty, MaxFiles: 3}} {
		if _, err := archive.Keep(&bytes.Buffer{}, dir, limits); !failure.Has(err, "too_large") {
			t.Errorf("%s: %v", name, err)
		}
	}
	var kept bytes.Buffer
	_, err := archive.Keep(&kept, dir, archive.Limits{MaxBytes: plenty})
	must(t, err)
	if _, err := restored(t, kept.Bytes(), archive.Limits{MaxBytes: 1000}); !failure.Has(err, "too_large") {
		t.Error(err)
	}
	if _, err := restored(t, kept.Bytes()[:kept.Len()/2], archive.Limits{MaxBytes: plenty}); !failure.Has(err, "bad_request") {
		t.Errorf("half of it was restored: %v", err)
	}
}
