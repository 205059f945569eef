// Package failure gives every error of a file operation the code with which its stream is reset.
package failure

import (
	"errors"
	"fmt"
	"syscall"

	"sandlot.dev/agent/internal/mux"
)

// failure is an error that carries its RESET code.
type failure struct{ code, message string }

func (f *failure) Error() string { return f.code + ": " + f.message }

// New is an error with a code of the protocol.
func New(code, format string, args ...any) error {
	return &failure{code, fmt.Sprintf(format, args...)}
}

// At names the path that an error is about.
func At(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", path, err)
}

// codes is the one table from the kernel's errors to the protocol's.
var codes = map[syscall.Errno]string{
	syscall.ENOENT:       "not_found",
	syscall.ESRCH:        "not_found", // of a process that ended, under /proc
	syscall.EEXIST:       "exists",
	syscall.EACCES:       "permission_denied",
	syscall.EPERM:        "permission_denied",
	syscall.EROFS:        "permission_denied",
	syscall.ENOTDIR:      "not_a_directory",
	syscall.EISDIR:       "is_a_directory",
	syscall.ENOTEMPTY:    "not_empty",
	syscall.ENOSPC:       "no_space",
	syscall.EDQUOT:       "no_space",
	syscall.ENAMETOOLONG: "bad_request",
	syscall.EINVAL:       "bad_request",
	syscall.ELOOP:        "bad_request",
	syscall.EXDEV:        "bad_request",
	syscall.EILSEQ:       "bad_request",
	syscall.EFBIG:        "too_large",
	syscall.EOVERFLOW:    "too_large",
	syscall.ENXIO:        "not_regular",
	syscall.ENODEV:       "not_regular",
	syscall.EBUSY:        "busy",
	syscall.ETXTBSY:      "busy",
	syscall.EAGAIN:       "busy",
	syscall.EMFILE:       "resource_exhausted",
	syscall.ENFILE:       "resource_exhausted",
	syscall.ENOMEM:       "resource_exhausted",
	syscall.EMLINK:       "resource_exhausted",
	syscall.ESTALE:       "gone",
	syscall.EINTR:        "interrupted",
}

// CodeOf says with which RESET an error ends its stream.
func CodeOf(err error) (code, message string) {
	var known *failure
	if errors.As(err, &known) {
		return known.code, known.message
	}
	var reset *mux.ResetError
	if errors.As(err, &reset) {
		return reset.Code, reset.Message
	}
	if errors.Is(err, mux.ErrClosed) {
		return "cancelled", err.Error()
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		if code, ok := codes[errno]; ok {
			return code, err.Error()
		}
	}
	return "internal", err.Error()
}

// Has says whether an error is one that ends its stream with that code.
func Has(err error, code string) bool {
	if err == nil {
		return false
	}
	got, _ := CodeOf(err)
	return got == code
}
