// Package paths says what a path is in a request and in an answer: bytes, in JSON, absolute once it is tidy.
package paths

import "strings"

// MaxBytes is how long a path of a request may be, as the kernel's PATH_MAX.
const MaxBytes = 4096

// Tidy drops empty and "." elements of an absolute path.
func Tidy(full string) string {
	var b strings.Builder
	for element := range strings.SplitSeq(full, "/") {
		if element != "" && element != "." {
			b.WriteByte('/')
			b.WriteString(element)
		}
	}
	if b.Len() == 0 {
		return "/"
	}
	return b.String()
}

// Split cuts a tidy path into its folder and its last element, which is "" for the root.
func Split(full string) (folder, base string) {
	at := strings.LastIndexByte(full, '/')
	if at == 0 {
		return "/", full[1:]
	}
	return full[:at], full[at+1:]
}

// Join is the inverse of Split.
func Join(folder, name string) string {
	if folder == "/" {
		return "/" + name
	}
	return folder + "/" + name
}

// Base is the last element of a tidy path, or "/".
func Base(path string) string {
	if _, base := Split(path); base != "" {
		return base
	}
	return "/"
}
