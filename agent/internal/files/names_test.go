package files

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"sandlot.dev/agent/internal/files/paths"
)

func TestNamesThatAreNotUTF8(t *testing.T) {
	c := start(t)
	name := "caf\xe9-\xff"
	must(t, os.WriteFile(filepath.Join(c.dir, name), []byte("x"), 0o644))
	// As the worker gets and sends it: raw JSON with the escapes.
	for _, request := range []fields{
		{"op": "file.stat", "path": paths.Path(name)},
		{"op": "file.read", "path": paths.Path(name)},
		{"op": "file.list", "path": "."},
		{"op": "file.walk", "path": ".", "glob": "caf?-?"},
		{"op": "file.walk", "path": ".", "glob": paths.Path("*\xff")},
		{"op": "file.search", "path": ".", "pattern": "x"},
	} {
		s := c.open(request)
		must(t, s.End())
		item, err := s.Recv()
		must(t, err)
		var answer struct {
			Entry   struct{ Name paths.Path }
			Entries []struct{ Name paths.Path }
			Matches []struct{ Path paths.Path }
		}
		must(t, json.Unmarshal(item.Payload, &answer))
		got := string(answer.Entry.Name)
		if len(answer.Entries) == 1 {
			got = string(answer.Entries[0].Name)
		}
		if len(answer.Matches) == 1 {
			got = filepath.Base(string(answer.Matches[0].Path))
		}
		if got != name {
			t.Errorf("%v: name %q in %s", request, got, item.Payload)
		}
		c.gather(s)
	}
	c.want("", c.do(fields{"op": "file.write", "path": paths.Path("new\xfe")}, []byte("y")))
	if c.content("new\xfe") != "y" {
		t.Error("not written")
	}
}
