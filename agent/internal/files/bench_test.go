package files

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"sandlot.dev/agent/internal/frame"
)

const benchSize = 1 << 30

func BenchmarkWrite1GB(b *testing.B) {
	c := start(b)
	block := bytes.Repeat([]byte("x"), frame.MaxData)
	b.SetBytes(benchSize)
	for b.Loop() {
		s := c.open(fields{"op": "file.write", "path": "f"})
		for offset := 0; offset < benchSize; offset += len(block) {
			must(b, s.SendData(0, uint64(offset), block))
		}
		must(b, s.End())
		c.want("", c.gather(s))
	}
}

func BenchmarkRead1GB(b *testing.B) {
	c := start(b)
	f, err := os.Create(filepath.Join(c.dir, "f"))
	must(b, err)
	_, err = io.CopyN(f, zeros{}, benchSize)
	must(b, err)
	must(b, f.Close())
	b.SetBytes(benchSize)
	for b.Loop() {
		s := c.open(fields{"op": "file.read", "path": "f"})
		must(b, s.End())
		for {
			if _, err := s.Recv(); err != nil {
				break
			}
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func BenchmarkArchive10kFiles(b *testing.B) {
	c := start(b)
	for i := range 10000 {
		c.put(fmt.Sprintf("src/d%d/f%d", i/100, i), "small content")
	}
	archive := c.want("", c.do(fields{"op": "archive.read", "path": "src"})).data
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			c.want("", c.do(fields{"op": "archive.read", "path": "src"}))
		}
	})
	b.Run("write", func(b *testing.B) {
		n := 0
		for b.Loop() {
			n++
			c.want("", c.do(fields{"op": "archive.write", "path": fmt.Sprintf("dst%d", n)}, archive))
		}
	})
	b.Run("remove", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			c.want("", c.do(fields{"op": "archive.write", "path": "gone"}, archive))
			b.StartTimer()
			c.want("", c.do(fields{"op": "file.remove", "path": "gone", "recursive": true}))
		}
	})
}
