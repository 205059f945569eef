package frame

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"
)

type golden struct {
	Valid []struct {
		Name       string `json:"name"`
		Hex        string `json:"hex"`
		Stream     uint32 `json:"stream"`
		Kind       uint8  `json:"kind"`
		PayloadHex string `json:"payload_hex"`
	} `json:"valid"`
	Invalid []struct {
		Name string `json:"name"`
		Hex  string `json:"hex"`
	} `json:"invalid"`
}

func load(t *testing.T) golden {
	t.Helper()
	raw, err := os.ReadFile("../../testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(raw, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Valid) < 13 || len(g.Invalid) < 8 {
		t.Fatalf("golden file is too thin: %d valid, %d invalid", len(g.Valid), len(g.Invalid))
	}
	return g
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGoldenFrames(t *testing.T) {
	g := load(t)
	for _, c := range g.Valid {
		raw, payload := unhex(t, c.Hex), unhex(t, c.PayloadHex)
		f, err := Read(bytes.NewReader(raw))
		if err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		if f.Stream != c.Stream || uint8(f.Kind) != c.Kind || !bytes.Equal(f.Payload, payload) {
			t.Fatalf("%s: got %+v", c.Name, f)
		}
		if again := Append(nil, f.Stream, f.Kind, f.Payload, nil); !bytes.Equal(again, raw) {
			t.Fatalf("%s: encodes to %x", c.Name, again)
		}
	}
	for _, c := range g.Invalid {
		if _, err := Read(bytes.NewReader(unhex(t, c.Hex))); !errors.Is(err, ErrViolation) {
			t.Fatalf("%s: got %v, want a violation", c.Name, err)
		}
	}
}

func TestTruncatedFrameIsNotACleanEnd(t *testing.T) {
	raw := Append(nil, 1, Message, []byte(`{"a":`), []byte(`1}`))
	for cut := 4; cut < len(raw); cut++ {
		if _, err := Read(bytes.NewReader(raw[:cut])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
	if _, err := Read(bytes.NewReader(nil)); err != io.EOF {
		t.Fatalf("empty: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(Append(nil, 1, Data, make([]byte, 9), []byte("hello")))
	f.Add(Append(nil, 0, Ping, make([]byte, 8), nil))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 1})
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := bytes.NewReader(raw)
		for {
			fr, err := Read(r)
			if err != nil {
				return
			}
			if len(fr.Payload) > MaxPayload {
				t.Fatalf("payload of %d", len(fr.Payload))
			}
			again, err := Read(bytes.NewReader(Append(nil, fr.Stream, fr.Kind, fr.Payload, nil)))
			if err != nil || again.Stream != fr.Stream || again.Kind != fr.Kind || !bytes.Equal(again.Payload, fr.Payload) {
				t.Fatalf("round trip: %+v %v", again, err)
			}
		}
	})
}
