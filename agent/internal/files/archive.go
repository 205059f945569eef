package files

import (
	"syscall"

	"sandlot.dev/agent/internal/files/archive"
	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/paths"
	"sandlot.dev/agent/internal/files/sys"
	"sandlot.dev/agent/internal/mux"
)

// What an archive unpacks to, unless the request says otherwise.
const defaultUnpacked = 10 << 30

// dataWriter sends what is written as DATA.
type dataWriter struct {
	stream *mux.Stream
	sent   uint64
}

func (w *dataWriter) Write(p []byte) (int, error) {
	if err := w.stream.SendData(0, w.sent, p); err != nil {
		return 0, err
	}
	w.sent += uint64(len(p))
	return len(p), nil
}

// archiveRead serves archive.read.
func (c *call) archiveRead() error {
	var q struct {
		Path     paths.Path `json:"path"`
		MaxBytes int64      `json:"max_bytes"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	path, err := c.resolve(q.Path)
	if err != nil {
		return err
	}
	if q.MaxBytes < 0 {
		return failure.New("bad_request", "max_bytes is negative")
	}
	packed, err := archive.Pack(&dataWriter{stream: c.stream}, path, uint64(q.MaxBytes), c.over)
	if err != nil {
		return failure.At(path, err)
	}
	if err := c.stream.SendMessage(map[string]any{"bytes": packed.Bytes, "files": packed.Files, "skipped": packed.Skipped}); err != nil {
		return err
	}
	c.stream.Finish()
	return nil
}

// archiveWrite serves archive.write. What was unpacked before something went wrong stays.
func (c *call) archiveWrite() error {
	var q struct {
		Path     paths.Path `json:"path"`
		MaxBytes int64      `json:"max_bytes"`
		MaxFiles int64      `json:"max_files"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	path, err := c.resolve(q.Path)
	if err != nil {
		return err
	}
	if q.MaxBytes < 0 || q.MaxFiles < 0 {
		return failure.New("bad_request", "max_bytes and max_files must not be negative")
	}
	if q.MaxBytes == 0 {
		q.MaxBytes = defaultUnpacked
	}
	if err := makeFolder(path, true, sys.NewFolderMode); err != nil {
		if failure.Has(err, "exists") {
			err = failure.At(path, syscall.ENOTDIR)
		}
		return err
	}
	rootFd, err := sys.Openat(sys.AtFdcwd, path, sys.ReadFlags|syscall.O_DIRECTORY, 0)
	if err != nil {
		return failure.At(path, err)
	}
	defer syscall.Close(rootFd)
	unpacked, err := archive.Unpack(&input{stream: c.stream}, rootFd, archive.Limits{MaxBytes: q.MaxBytes, MaxFiles: q.MaxFiles})
	if err != nil {
		return err
	}
	c.stream.Reply(map[string]any{"files": unpacked.Files, "bytes": unpacked.Bytes})
	return nil
}
