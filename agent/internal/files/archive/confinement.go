package archive

import (
	"slices"
	"strings"
	"syscall"

	"sandlot.dev/agent/internal/files/failure"
	"sandlot.dev/agent/internal/files/paths"
	"sandlot.dev/agent/internal/files/sys"
	"sandlot.dev/agent/internal/files/tree"
)

// confinement finds folders under an open one and never any other. It goes element by element, each opened without
// following links from the one before; what a link says is put in place of its element and gone through again from
// the start, so user code that swaps things meanwhile can only send it elsewhere inside.
type confinement struct{ fd int }

const maxDetours = 255 // links and ".." of links that one name may lead through

// open opens the folder at a name from inside, made with its parents if create says so.
func (c confinement) open(name string, create bool) (int, error) {
	elements := strings.Split(name, "/")
	for range maxDetours {
		fd, detour, err := c.follow(elements, create)
		if detour == nil {
			return fd, failure.At(name, err)
		}
		if elements = detour; len(elements) > tree.MaxPath {
			break
		}
	}
	return -1, failure.At(name, syscall.ELOOP)
}

// follow goes along elements. At a link or "..", it returns the way round it instead.
func (c confinement) follow(elements []string, create bool) (fd int, detour []string, err error) {
	fd, _, err = sys.OpenFolder(c.fd, ".")
	for i, element := range elements {
		if err != nil {
			return -1, nil, err
		}
		switch element {
		case "", ".":
			continue
		case "..": // of a link's target; all before it are folders, so the last of them is what it takes back
			syscall.Close(fd)
			before := slices.DeleteFunc(slices.Clone(elements[:i]), func(e string) bool { return e == "" || e == "." })
			if len(before) == 0 {
				return -1, nil, failure.New("bad_request", "a link leads out of the folder to unpack to")
			}
			return -1, append(before[:len(before)-1], elements[i+1:]...), nil
		}
		next, _, openErr := sys.OpenFolder(fd, element)
		if openErr == syscall.ENOENT && create {
			if err := syscall.Mkdirat(fd, element, sys.NewFolderMode); err == nil || err == syscall.EEXIST {
				next, _, openErr = sys.OpenFolder(fd, element)
			} else {
				openErr = err
			}
		}
		if openErr == syscall.ELOOP {
			target, linkErr := sys.Readlinkat(fd, element)
			syscall.Close(fd)
			switch {
			case linkErr == syscall.EINVAL: // no link any more
				return -1, elements, nil
			case linkErr != nil:
				return -1, nil, linkErr
			case strings.HasPrefix(target, "/"):
				return -1, nil, failure.New("bad_request", "a link leads out of the folder to unpack to")
			}
			return -1, slices.Concat(elements[:i], strings.Split(target, "/"), elements[i+1:]), nil
		}
		syscall.Close(fd)
		fd, err = next, openErr
	}
	return fd, nil, err
}

// inside checks a name of an archive: relative, without "..", as "a/b", or "." for the root itself.
func inside(name string) (string, error) {
	switch {
	case strings.HasPrefix(name, "/"):
		return "", failure.New("bad_request", "%q in the archive is absolute", name)
	case strings.IndexByte(name, 0) >= 0:
		return "", failure.New("bad_request", "%q in the archive contains a NUL byte", name)
	case len(name) > tree.MaxPath:
		return "", failure.New("bad_request", "a name in the archive has more than %d bytes", tree.MaxPath)
	case name == "":
		return "", failure.New("bad_request", "a name in the archive is empty")
	}
	for element := range strings.SplitSeq(name, "/") {
		if element == ".." {
			return "", failure.New("bad_request", "%q in the archive leads upwards", name)
		}
	}
	if clean := paths.Tidy("/" + name); clean != "/" {
		return clean[1:], nil
	}
	return ".", nil
}

// cut splits a name from inside into its folder, "." for the root, and its last element.
func cut(name string) (folder, base string) {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i], name[i+1:]
	}
	return ".", name
}
