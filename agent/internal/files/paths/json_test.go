package paths

import (
	"encoding/json"
	"testing"
	"unicode/utf8"
)

func TestJSONPath(t *testing.T) {
	for bytes, want := range map[string]string{
		"plain":           `"plain"`,
		"a\"\\\n\x00":     `"a\"\\\u000a\u0000"`,
		"é😀":              `"é😀"`,
		"a\xffb":          `"a\udcffb"`,
		"\xc3":            `"\udcc3"`,
		"\xed\xb2\x80":    `"\udced\udcb2\udc80"`, // a surrogate in UTF-8's clothes is no UTF-8
		"<&>\u2028\u2029": `"\u003c\u0026\u003e\u2028\u2029"`,
	} {
		raw, err := json.Marshal(map[string]any{"p": Path(bytes)})
		if err != nil || string(raw) != `{"p":`+want+`}` {
			t.Errorf("%q became %s, %v", bytes, raw, err)
		}
		var back struct{ P Path }
		if err := json.Unmarshal(raw, &back); err != nil || string(back.P) != bytes {
			t.Errorf("%q came back as %q, %v", bytes, back.P, err)
		}
	}
	for raw, want := range map[string]string{
		`"\u00e9\ud83d\ude00\/\t\b\f\n\r"`: "é😀/\t\b\f\n\r",
		`"\udcc3\uDCA9"`:                   "é",
		`null`:                             "",
	} {
		var p Path
		if err := json.Unmarshal([]byte(raw), &p); err != nil || string(p) != want {
			t.Errorf("%s became %q, %v", raw, p, err)
		}
	}
	for _, raw := range []string{`"\ud83d"`, `"\ud83dx"`, `"\udc41"`, `"\udfff"`, `"\ud83d\u0041"`, `7`, `["a"]`} {
		var p Path
		if err := json.Unmarshal([]byte(raw), &p); err == nil {
			t.Errorf("%s became %q", raw, p)
		}
	}
}

func FuzzJSONPath(f *testing.F) {
	f.Add("a\xff\xed\xb2\x80é😀\x00")
	f.Fuzz(func(t *testing.T, s string) {
		raw, err := json.Marshal(Path(s))
		if err != nil || !utf8.Valid(raw) {
			t.Fatalf("%q: %s, %v", s, raw, err)
		}
		if own := AppendString(nil, s); string(own) != string(raw) {
			t.Fatalf("%q: length changed when embedded: %s, %s", s, own, raw)
		}
		var back Path
		if err := json.Unmarshal(raw, &back); err != nil || string(back) != s {
			t.Fatalf("%q came back as %q, %v", s, back, err)
		}
	})
}
