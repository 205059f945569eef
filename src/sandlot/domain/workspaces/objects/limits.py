"""What a saved tree of files may have. They bound the memory and time of a save, and of a load of a hostile
store's answers.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# What a file system takes: the length of a name, and of a symlink's target.
MAX_NAME_BYTES: Final = 255
MAX_TARGET_BYTES: Final = 4095
# Folders inside each other. The kernel has no limit of its own.
MAX_DEPTH: Final = 4096
MAX_ENTRIES: Final = 20_000_000
MAX_ATTRIBUTES_BYTES: Final = 64 * KIB
MAX_META_BYTES: Final = 64 * KIB

# Files are kept in chunks. Those of a large file are cut where its content says: a change of 1 MB sends its
# own bytes and at most three chunks more.
MIN_CHUNK_BYTES: Final = 128 * KIB
AVERAGE_CHUNK_BYTES: Final = 512 * KIB
MAX_CHUNK_BYTES: Final = 1 * MIB
# Small files share a chunk: it ends after one whose content says so, on average at GROUP_BYTES, or when it is
# full.
MIN_GROUP_BYTES: Final = 128 * KIB
GROUP_BYTES: Final = 1 * MIB
MAX_GROUP_BYTES: Final = 4 * MIB
# Of one file: at the average size, of a file of 1 TB.
MAX_PIECES: Final = 2_000_000
# A hole in a file that is shorter than this is kept as zeros. They cost nothing, and bound how many pieces
# a hostile file has.
MIN_HOLE_BYTES: Final = 64 * KIB

# A manifest is in parts, so that an equal part of the next one is not sent again.
MIN_PART_BYTES: Final = 32 * KIB
MAX_PART_BYTES: Final = 256 * KIB
MAX_PARTS: Final = 100_000
# Of one record of a manifest. A file with more pieces has several records.
MAX_PIECES_PER_RECORD: Final = 1000
# Of any object. A larger one is not ours, and is not read.
MAX_OBJECT_BYTES: Final = 16 * MIB
