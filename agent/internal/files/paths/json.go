package paths

import (
	"errors"
	"strconv"
	"unicode/utf8"
)

// Path is a path or file name in JSON. Linux names are bytes, JSON strings are not: each byte that is not part
// of valid UTF-8 is written as the escape \udc80 … \udcff (byte + 0xdc00) and read back so. Python calls the same
// rule surrogateescape.
type Path string

var errSurrogate = errors.New("a lone surrogate other than \\udc80 to \\udcff")

const hexDigits = "0123456789abcdef"

// MarshalJSON implements json.Marshaler.
func (p Path) MarshalJSON() ([]byte, error) { return AppendString(nil, string(p)), nil }

// AppendString adds s as a JSON string. Whatever encoding/json would still escape when it embeds the result (HTML's
// characters, line separators) is escaped already, so the length is final.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			switch {
			case c == '"' || c == '\\':
				dst = append(dst, '\\', c)
			case c < 0x20 || c == 0x7f || c == '<' || c == '>' || c == '&':
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			default:
				dst = append(dst, c)
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			dst = append(dst, '\\', 'u', 'd', 'c', hexDigits[c>>4], hexDigits[c&15])
		case r == '\u2028' || r == '\u2029':
			dst = append(dst, '\\', 'u', '2', '0', '2', hexDigits[r&15])
		default:
			dst = append(dst, s[i:i+size]...)
		}
		i += size
	}
	return append(dst, '"')
}

// UnmarshalJSON implements json.Unmarshaler. raw is one valid JSON value.
func (p *Path) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	if len(raw) < 2 || raw[0] != '"' {
		return errors.New("a path must be a string")
	}
	raw = raw[1 : len(raw)-1]
	out := make([]byte, 0, len(raw))
	for len(raw) > 0 {
		if raw[0] != '\\' {
			out = append(out, raw[0])
			raw = raw[1:]
			continue
		}
		if len(raw) < 2 {
			return errors.New("a broken escape")
		}
		if raw[1] != 'u' {
			out = append(out, unescape(raw[1]))
			raw = raw[2:]
			continue
		}
		unit, err := escapedUnit(raw)
		if err != nil {
			return err
		}
		raw = raw[6:]
		switch {
		case unit >= 0xdc80 && unit <= 0xdcff:
			out = append(out, byte(unit-0xdc00))
		case unit >= 0xd800 && unit <= 0xdbff:
			low, err := escapedUnit(raw)
			if err != nil || low < 0xdc00 || low > 0xdfff {
				return errSurrogate
			}
			raw = raw[6:]
			out = utf8.AppendRune(out, (unit-0xd800)<<10|(low-0xdc00)+0x10000)
		case unit >= 0xdc00 && unit <= 0xdfff:
			return errSurrogate
		default:
			out = utf8.AppendRune(out, unit)
		}
	}
	*p = Path(out)
	return nil
}

// escapedUnit reads the UTF-16 unit of a \uXXXX at the start of raw.
func escapedUnit(raw []byte) (rune, error) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, errors.New("a broken escape")
	}
	n, err := strconv.ParseUint(string(raw[2:6]), 16, 16)
	return rune(n), err
}

func unescape(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c // a quote, a slash or a backslash
}
