package files

import (
	"math"
	"syscall"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/paths"
	"sandlot.dev/agent/internal/files/sys"
	"sandlot.dev/agent/internal/frame"
)

type readRequest struct {
	Path     paths.Path `json:"path"`
	Offset   int64      `json:"offset"`
	Length   *int64     `json:"length"`
	MaxBytes int64      `json:"max_bytes"`
}

// read serves file.read.
func (c *call) read() error {
	var q readRequest
	if err := c.decode(&q); err != nil {
		return err
	}
	path, err := c.resolve(q.Path)
	if err != nil {
		return err
	}
	if q.Offset < 0 || q.MaxBytes < 0 || (q.Length != nil && *q.Length < 0) {
		return failure.New("bad_request", "offset, length and max_bytes must not be negative")
	}
	fd, st, err := sys.OpenRegular(sys.AtFdcwd, path, 0)
	if err != nil {
		return failure.At(path, err)
	}
	defer syscall.Close(fd)
	if err := c.stream.SendMessage(entryAnswer{appendEntry(nil, path, paths.Base(path), &st, "")}); err != nil {
		return err
	}
	sent, truncated, err := c.sendRange(fd, st.Size, q)
	if err != nil {
		return failure.At(path, err)
	}
	if err := c.stream.SendMessage(map[string]any{"bytes": sent, "truncated": truncated}); err != nil {
		return err
	}
	c.stream.Finish()
	return nil
}

// sendRange sends what was asked for of an open file. The end is the asked one, or else the size at the start, so
// that a file that grows all the while comes to an end; a size of 0 may be a lie (/proc) and is read to its end.
func (c *call) sendRange(fd int, size int64, q readRequest) (sent int64, truncated bool, err error) {
	end := size
	switch {
	case q.Length != nil && *q.Length <= math.MaxInt64-q.Offset:
		end = q.Offset + *q.Length
	case q.Length != nil || size == 0:
		end = math.MaxInt64
	}
	stop := end
	if q.MaxBytes > 0 && q.MaxBytes <= math.MaxInt64-q.Offset {
		stop = min(end, q.Offset+q.MaxBytes)
	}
	if size > 0 && q.Offset >= size {
		return 0, false, nil
	}
	buf := make([]byte, frame.MaxData)
	for offset := q.Offset; offset < stop; {
		n, err := sys.ReadAt(fd, buf[:min(int64(len(buf)), stop-offset)], offset)
		if err != nil {
			return sent, false, err
		}
		if n == 0 {
			return sent, false, nil
		}
		if err := c.stream.SendData(0, uint64(offset), buf[:n]); err != nil {
			return sent, false, err
		}
		offset += int64(n)
		sent += int64(n)
		if size == 0 && q.Length == nil {
			// A real file that was empty and now grows has a size by now; /proc never has.
			var st syscall.Stat_t
			if err := syscall.Fstat(fd, &st); err == nil && st.Size > 0 {
				size = st.Size
				end = st.Size
				stop = min(stop, end)
			}
		}
	}
	if stop < end {
		n, _ := sys.ReadAt(fd, buf[:1], stop) // what cannot be read is not there to be missed
		truncated = n > 0
	}
	return sent, truncated, nil
}
