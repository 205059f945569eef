package files

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// tarOf makes an archive without any check of the writer's.
func tarOf(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		content := ""
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			content, h.Linkname = h.Linkname, ""
			h.Size = int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		must(t, w.WriteHeader(&h))
		_, err := io.WriteString(w, content)
		must(t, err)
	}
	must(t, w.Close())
	return buf.Bytes()
}

// file stands for a regular file: its content travels as Linkname to tarOf.
func file(name, content string) tar.Header { return tar.Header{Name: name, Linkname: content} }
func link(name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
}
func hard(name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target}
}

func TestArchiveRoundTrip(t *testing.T) {
	c := start(t)
	big := strings.Repeat("0123456789", 50000)
	c.put("src/big", big)
	c.put("src/d/small", "s")
	c.put("src/d/non\xffutf8", "n")
	c.put("src/"+strings.Repeat("long/", 40)+"f", "l")
	c.put("src/closed/f", "c")
	at := func(name string) string { return filepath.Join(c.dir, name) }
	must(t, os.Chmod(at("src/closed"), 0o555))
	t.Cleanup(func() { // else nobody but root could remove them
		_ = os.Chmod(at("src/closed"), 0o755)
		_ = os.Chmod(at("to/dst/closed"), 0o755)
	})
	must(t, os.Symlink("/etc/passwd", at("src/link")))
	must(t, os.Chmod(at("src/d/small"), 0o751|os.ModeSetuid))
	then := time.Unix(1234567890, 0)
	must(t, os.Chtimes(at("src/d/small"), then, then))
	a := c.want("", c.do(fields{"op": "archive.read", "path": "src"}))
	if a.last()["bytes"] != float64(len(a.data)) || a.last()["skipped"] != 0.0 {
		t.Errorf("%v for %d bytes", a.last(), len(a.data))
	}
	b := c.want("", c.do(fields{"op": "archive.write", "path": "to/dst"}, a.data))
	if b.last()["files"] != a.last()["files"] || b.last()["bytes"] != 500004.0 {
		t.Errorf("%v, %v", a.last(), b.last())
	}
	if c.content("to/dst/big") != big || c.content("to/dst/d/non\xffutf8") != "n" || c.content("to/dst/"+strings.Repeat("long/", 40)+"f") != "l" {
		t.Error("other content")
	}
	if target, _ := os.Readlink(at("to/dst/link")); target != "/etc/passwd" {
		t.Errorf("link to %q", target)
	}
	info, err := os.Stat(at("to/dst/d/small"))
	must(t, err)
	if info.Mode() != 0o751 || !info.ModTime().Equal(then) {
		t.Errorf("%v %v", info.Mode(), info.ModTime())
	}
	if mode := modeOf(t, at("to/dst/closed")); mode.Perm() != 0o555 {
		t.Errorf("closed folder %v", mode)
	}
	// Again over what is there.
	c.want("", c.do(fields{"op": "archive.write", "path": "to/dst"}, a.data))
	// A single file, and the limit.
	a = c.want("", c.do(fields{"op": "archive.read", "path": "src/d/small"}))
	if h, err := tar.NewReader(bytes.NewReader(a.data)).Next(); err != nil || h.Name != "small" {
		t.Errorf("%v %v", h, err)
	}
	c.want("too_large", c.do(fields{"op": "archive.read", "path": "src", "max_bytes": 10000}))
	c.want("", c.do(fields{"op": "archive.write", "path": "nothing"}))
}

func TestArchiveOfAChangingFile(t *testing.T) {
	c := start(t)
	path := c.put("d/log", strings.Repeat("x", 1<<20))
	var stop atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; !stop.Load(); i++ {
			_ = os.Truncate(path, int64(i*7919%(1<<20)))
		}
	}()
	for range 50 {
		a := c.want("", c.do(fields{"op": "archive.read", "path": "d"}))
		r := tar.NewReader(bytes.NewReader(a.data))
		if h, err := r.Next(); err != nil || h.Name != "log" {
			t.Fatal(h, err)
		} else if n, err := io.Copy(io.Discard, r); err != nil || n != h.Size {
			t.Fatal(n, h.Size, err)
		}
		if _, err := r.Next(); err != io.EOF {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	<-stopped
}

func TestHostileArchives(t *testing.T) {
	c := start(t)
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	must(t, os.WriteFile(secret, []byte("secret"), 0o600))
	broken := tarOf(t, file("ok", "x"))
	broken[0] ^= 0xff
	for name, row := range map[string]struct {
		code    string
		archive []byte
	}{
		"absolute":             {"bad_request", tarOf(t, file(outside+"/a", "x"))},
		"upwards":              {"bad_request", tarOf(t, file("../a", "x"))},
		"upwards inside":       {"bad_request", tarOf(t, file("d/../../a", "x"))},
		"only upwards":         {"bad_request", tarOf(t, tar.Header{Name: "..", Typeflag: tar.TypeDir})},
		"root as file":         {"bad_request", tarOf(t, file(".", "x"))},
		"root as link":         {"bad_request", tarOf(t, link("./.", outside))},
		"through a link":       {"bad_request", tarOf(t, link("l", outside), file("l/a", "x"))},
		"through a relative":   {"bad_request", tarOf(t, link("l", "../../.."), file("l/a", "x"))},
		"through two":          {"bad_request", tarOf(t, link("k", ".."), link("l", "k/.."), file("l/a", "x"))},
		"folder through link":  {"bad_request", tarOf(t, link("l", outside), tar.Header{Name: "l/d", Typeflag: tar.TypeDir, Mode: 0o777})},
		"folder at a link":     {"bad_request", tarOf(t, link("l", outside), tar.Header{Name: "l", Typeflag: tar.TypeDir, Mode: 0o777})},
		"link through link":    {"bad_request", tarOf(t, link("l", outside), link("l/a", "x"))},
		"over a link":          {"", tarOf(t, link("l", secret), file("l", "mine"))},
		"hard link out":        {"bad_request", tarOf(t, hard("h", secret))},
		"hard link upwards":    {"bad_request", tarOf(t, hard("h", "../x"))},
		"hard link via link":   {"bad_request", tarOf(t, link("l", outside), hard("h", "l/secret"))},
		"hard link to link":    {"bad_request", tarOf(t, link("l", secret), hard("h", "l"))},
		"hard link to nothing": {"not_found", tarOf(t, hard("h", "nothing"))},
		"hard link to folder":  {"bad_request", tarOf(t, hard("h", "."))},
		"hard link":            {"", tarOf(t, file("a", "x"), hard("h", "a"), hard("a", "a"))},
		"device":               {"bad_request", tarOf(t, tar.Header{Name: "n", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3})},
		"block device":         {"bad_request", tarOf(t, tar.Header{Name: "n", Typeflag: tar.TypeBlock})},
		"fifo":                 {"bad_request", tarOf(t, tar.Header{Name: "n", Typeflag: tar.TypeFifo})},
		"special bits":         {"", tarOf(t, tar.Header{Name: "s", Mode: 0o7777, Linkname: "x"}, tar.Header{Name: "sd", Typeflag: tar.TypeDir, Mode: 0o7777})},
		"file as folder":       {"not_a_directory", tarOf(t, file("a", "x"), file("a/b", "x"))},
		"folder as file":       {"is_a_directory", tarOf(t, file("a/b", "x"), file("a", "x"))},
		"link to itself":       {"bad_request", tarOf(t, link("l", "l"), file("l/a", "x"))},
		"long name":            {"bad_request", tarOf(t, file(strings.Repeat("n", 300), "x"))},
		"very long name":       {"bad_request", tarOf(t, file(strings.Repeat("n/", 20000)+"n", "x"))},
		"cut short":            {"bad_request", tarOf(t, file("a", strings.Repeat("x", 5000)))[:3000]},
		"broken head":          {"bad_request", broken},
		"noise":                {"bad_request", bytes.Repeat([]byte("noise"), 1000)},
		"inner link":           {"", tarOf(t, tar.Header{Name: "d", Typeflag: tar.TypeDir, Mode: 0o755}, link("l", "d"), file("l/a", "x"))},
	} {
		t.Run(name, func(t *testing.T) {
			dir := "sub/" + strings.ReplaceAll(name, " ", "-")
			if a := c.do(fields{"op": "archive.write", "path": dir}, row.archive); a.code != row.code {
				t.Errorf("ended with %q, want %q", a.code, row.code)
			}
			must(t, filepath.WalkDir(filepath.Join(c.dir, dir), func(path string, d os.DirEntry, err error) error {
				if info, _ := d.Info(); info != nil && info.Mode()&(os.ModeSetuid|os.ModeSetgid|os.ModeSticky|os.ModeDevice|os.ModeNamedPipe) != 0 {
					t.Errorf("%s is %v", path, info.Mode())
				}
				return err
			}))
		})
	}
	left, err := os.ReadDir(outside)
	must(t, err)
	content, err := os.ReadFile(secret)
	must(t, err)
	if info, _ := os.Stat(secret); len(left) != 1 || string(content) != "secret" || info.Sys().(*syscall.Stat_t).Nlink != 1 {
		t.Errorf("outside was touched: %v", left)
	}
	above, err := os.ReadDir(c.dir)
	must(t, err)
	if len(above) != 1 {
		t.Errorf("above was touched: %v", above)
	}
}

func TestArchiveWriteLimits(t *testing.T) {
	c := start(t)
	archive := tarOf(t, file("a", "12345"), file("b", "12345"))
	c.want("", c.do(fields{"op": "archive.write", "path": "1", "max_bytes": 10, "max_files": 2}, archive))
	c.want("too_large", c.do(fields{"op": "archive.write", "path": "2", "max_bytes": 9}, archive))
	c.want("too_large", c.do(fields{"op": "archive.write", "path": "3", "max_files": 1}, archive))
	s := c.open(fields{"op": "archive.write", "path": "4"})
	must(t, s.SendData(0, 0, archive[:514]))
	for {
		if _, err := os.Stat(filepath.Join(c.dir, "4/a")); err == nil {
			break
		}
	}
	s.Reset("cancelled", "")
	for {
		if _, err := os.Stat(filepath.Join(c.dir, "4/a")); err != nil {
			break // half a file does not stay
		}
	}
}

// While a folder of the archive is swapped for a link that leads out, nothing is ever made outside.
func TestArchiveWriteWhileFoldersAreSwapped(t *testing.T) {
	c := start(t)
	outside := t.TempDir()
	must(t, os.Mkdir(filepath.Join(c.dir, "in"), 0o755))
	var headers []tar.Header
	for i := range 40 {
		headers = append(headers, file(fmt.Sprintf("swap/f%d", i), "x"), file(fmt.Sprintf("g%d", i), "x"),
			tar.Header{Name: fmt.Sprintf("swap/d%d", i), Typeflag: tar.TypeDir, Mode: 0o700})
	}
	archive := tarOf(t, headers...)
	var stop atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		swap, away := filepath.Join(c.dir, "in/swap"), filepath.Join(c.dir, "in/away")
		for !stop.Load() {
			_ = os.Rename(swap, away)
			_ = os.Symlink(outside, swap)
			_ = os.Remove(swap)
			_ = os.Rename(away, swap)
		}
	}()
	results := map[string]int{}
	for range 300 {
		results[c.do(fields{"op": "archive.write", "path": "in"}, archive).code]++
	}
	stop.Store(true)
	<-stopped
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("made outside: %v, %v", left, err)
	}
	if results["internal"] > 0 {
		t.Errorf("%v", results)
	}
	t.Log(results)
}

// S9: a small archive of a huge sparse file takes no more room than the file did.
func TestSparseFilesStaySparse(t *testing.T) {
	c := start(t)
	path := c.put("src/huge", "begin")
	must(t, os.Truncate(path, 1<<28))
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = file.WriteAt([]byte("middle"), 200_000_000)
	must(t, err)
	must(t, file.Close())
	archive, err := osexec.Command("tar", "-C", filepath.Dir(path), "-S", "-cf", "-", "huge").Output()
	must(t, err)
	if len(archive) > 1<<20 {
		t.Fatalf("the archive itself has %d bytes", len(archive))
	}
	c.want("", c.do(fields{"op": "archive.write", "path": "dst"}, archive))
	var st syscall.Stat_t
	must(t, syscall.Stat(filepath.Join(c.dir, "dst/huge"), &st))
	if st.Size != 1<<28 || st.Blocks*512 > 1<<20 {
		t.Fatalf("%d bytes in %d blocks", st.Size, st.Blocks)
	}
	if same, err := osexec.Command("cmp", path, filepath.Join(c.dir, "dst/huge")).CombinedOutput(); err != nil {
		t.Fatalf("%s %v", same, err)
	}
	must(t, os.Truncate(path, defaultUnpacked+1))
	archive, err = osexec.Command("tar", "-C", filepath.Dir(path), "-S", "-cf", "-", "huge").Output()
	must(t, err)
	c.want("too_large", c.do(fields{"op": "archive.write", "path": "dst"}, archive))
}
