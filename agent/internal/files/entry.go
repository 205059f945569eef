package files

import (
	"encoding/json"
	"strconv"
	"syscall"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/paths"
	"sandlot.dev/agent/internal/files/sys"
	"sandlot.dev/agent/internal/mux"
)

// flushAt: a message of entries is sent when it has grown to this. The largest single item (a path and a link's
// target of 4,096 bytes, each byte escaped with six) is below 56 KiB, so a message always fits its frame.
const flushAt = 32 << 10

// appendEntry adds an entry of the protocol as JSON; target is "" for what is not a symlink.
func appendEntry(dst []byte, path, name string, st *syscall.Stat_t, target string) []byte {
	number := func(key string, n int64) {
		dst = append(dst, key...)
		dst = strconv.AppendInt(dst, n, 10)
	}
	dst = append(dst, `{"path":`...)
	dst = paths.AppendString(dst, path)
	dst = append(dst, `,"name":`...)
	dst = paths.AppendString(dst, name)
	dst = append(dst, `,"type":"`...)
	dst = append(dst, sys.TypeName(st.Mode)...)
	number(`","size":`, st.Size)
	number(`,"mode":`, int64(st.Mode&0o7777))
	number(`,"mtime_ms":`, st.Mtim.Sec*1000+st.Mtim.Nsec/1e6)
	number(`,"uid":`, int64(st.Uid))
	number(`,"gid":`, int64(st.Gid))
	if target != "" {
		dst = append(dst, `,"target":`...)
		dst = paths.AppendString(dst, target)
	}
	return append(dst, '}')
}

// appendEntryAt adds the entry of a name in an open folder, without following it.
func appendEntryAt(dst []byte, dirfd int, path, name string) ([]byte, error) {
	st, err := sys.Lstatat(dirfd, name)
	if err != nil {
		return dst, err
	}
	target := ""
	if st.Mode&syscall.S_IFMT == syscall.S_IFLNK {
		// A link that was replaced meanwhile has no target to tell; its entry stands as it was seen.
		target, _ = sys.Readlinkat(dirfd, name)
	}
	return appendEntry(dst, path, name, &st, target), nil
}

type entryAnswer struct {
	Entry json.RawMessage `json:"entry"`
}

// stat serves file.stat.
func (c *call) stat() error {
	var q struct {
		Path   paths.Path `json:"path"`
		Follow *bool      `json:"follow"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	path, err := c.resolve(q.Path)
	if err != nil {
		return err
	}
	if q.Follow == nil || *q.Follow {
		st, err := sys.Fstatat(sys.AtFdcwd, path, 0)
		if err != nil {
			return failure.At(path, err)
		}
		c.stream.Reply(entryAnswer{appendEntry(nil, path, paths.Base(path), &st, "")})
		return nil
	}
	return c.replyEntry(path)
}

// replyEntry answers with the entry that stands at path itself.
func (c *call) replyEntry(path string) error {
	st, err := sys.Lstatat(sys.AtFdcwd, path)
	if err != nil {
		return failure.At(path, err)
	}
	target := ""
	if st.Mode&syscall.S_IFMT == syscall.S_IFLNK {
		target, _ = sys.Readlinkat(sys.AtFdcwd, path) // as in appendEntryAt
	}
	c.stream.Reply(entryAnswer{appendEntry(nil, path, paths.Base(path), &st, target)})
	return nil
}

// batch gathers items into messages {"<key>": [...]} that fit their frames.
type batch struct {
	stream *mux.Stream
	key    string
	items  []byte
}

func (b *batch) add(item []byte) error {
	if len(b.items) > 0 && len(b.items)+len(item) > flushAt {
		if err := b.flush(nil); err != nil {
			return err
		}
	}
	if len(b.items) > 0 {
		b.items = append(b.items, ',')
	}
	b.items = append(b.items, item...)
	return nil
}

// flush sends what is gathered, with the fields that close the answer if it is the last message.
func (b *batch) flush(last map[string]any) error {
	raw := append(append([]byte{'['}, b.items...), ']')
	b.items = b.items[:0]
	message := map[string]any{b.key: json.RawMessage(raw)}
	for key, value := range last {
		message[key] = value
	}
	return b.stream.SendMessage(message)
}

// finish sends the last message and ends the stream.
func (b *batch) finish(last map[string]any) error {
	if err := b.flush(last); err != nil {
		return err
	}
	b.stream.Finish()
	return nil
}
