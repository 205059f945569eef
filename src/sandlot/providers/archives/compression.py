"""zstd streams. Each frame has a checksum, so a flipped bit is found, and its end is known.

The library's own stream reader takes a stream that was cut off for a whole one. So frames are decompressed in
slices here, and their ends are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Final

import zstandard

from sandlot.domain.workspaces.objects.limits import KIB, MIB
from sandlot.providers.archives.limits import damaged, refused

MEDIA_TYPE: Final = "application/zstd"
LEVEL: Final = 3
PIECE_BYTES: Final = 256 * KIB
# What `zstd -19` needs. It bounds the memory for an archive of anybody's.
MAX_WINDOW_BYTES: Final = 8 * MIB
# A block of zeros is 4 bytes, and 128 KiB decompressed: so a slice becomes at most 16 MiB.
_SLICE_BYTES: Final = 512
_MAGIC: Final = b"\x28\xb5\x2f\xfd"


def compressed(pieces: Iterable[bytes]) -> Generator[bytes, None, None]:
    """One frame with a checksum, in pieces of about ``PIECE_BYTES``."""
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compressobj()
    ready = bytearray()
    for piece in pieces:
        ready += compressor.compress(piece)
        while len(ready) >= PIECE_BYTES:
            yield bytes(ready[:PIECE_BYTES])
            del ready[:PIECE_BYTES]
    yield bytes(ready) + compressor.flush()


class Decompressed:
    """Reads what the frames of a stream hold.

    ``read``: returns the next piece of the compressed stream, and ``b""`` at its end. ``position``: how much
    has been read or skipped.
    """

    def __init__(self, read: Callable[[], bytes]) -> None:
        self.position = 0
        self._read = read
        self._input = memoryview(b"")
        self._output = memoryview(b"")
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._began = False

    def read(self, size: int) -> bytes:
        """Fewer bytes only at the end."""
        if len(self._output) >= size:
            return self._take(size)
        found = bytearray()
        while len(found) < size and self._fill():
            taken = self._output[: size - len(found)]
            self._output = self._output[len(taken) :]
            found += taken
        self.position += len(found)
        return bytes(found)

    def skip(self, size: int) -> None:
        """Go on, to the end if that is nearer."""
        while size > 0 and self._fill():
            taken = min(size, len(self._output))
            self._output = self._output[taken:]
            self.position += taken
            size -= taken

    def _take(self, size: int) -> bytes:
        taken, self._output = self._output[:size], self._output[size:]
        self.position += size
        return bytes(taken)

    def _fill(self) -> bool:
        """Have some output. False at the end of the last frame."""
        while not self._output:
            if not self._input:
                self._input = memoryview(self._read())
                if not self._input:
                    if self._frame is not None or not self._began:
                        raise damaged("it ends too early" if self._began else "it is empty")
                    return False
            if self._frame is None:
                decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
                self._frame = decompressor.decompressobj()
            piece = self._input[:_SLICE_BYTES]
            try:
                self._output = memoryview(self._frame.decompress(piece))
            except zstandard.ZstdError as error:
                raise _problem(error, foreign=not self._began and bytes(piece[:4]) != _MAGIC) from error
            self._began = True
            taken = len(piece)
            if self._frame.eof:
                taken -= len(self._frame.unused_data)
                self._frame = None
            self._input = self._input[taken:]
        return True


def _problem(error: zstandard.ZstdError, *, foreign: bool) -> Exception:
    text = str(error)
    if "memory" in text:
        return refused(
            f"it was compressed with a window of more than {MAX_WINDOW_BYTES // MIB} MiB. Compress it "
            "without --long and --ultra"
        )
    if foreign:
        return refused("it is not compressed with zstd. Make it with `tar --zstd -cf`")
    return damaged("its checksum or its compression is wrong")
