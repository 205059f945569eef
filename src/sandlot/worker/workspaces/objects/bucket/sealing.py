"""Seals an object: compressed, then encrypted or checksummed, and bound to its place.

    "SLO1" · flags · length of the content · [salt] · body · tag

A flipped bit anywhere is found: the tag covers the header, the body, and the name of the object. So a store
cannot pass one object off as another either. Each encrypted object has a key of its own, derived with a
random salt of 32 bytes; so no nonce is ever used twice with one key, however many objects there are.
"""

from __future__ import annotations

import hmac
import os
import struct
from typing import Final

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sandlot.domain.workspaces.objects.entry_names import damaged
from sandlot.domain.workspaces.objects.limits import MAX_OBJECT_BYTES

_HEADER: Final = struct.Struct(">4sBI")
_MAGIC: Final = b"SLO1"
_ENCRYPTED: Final = 1
_COMPRESSED: Final = 2
_SALT_BYTES: Final = 32
TAG_BYTES: Final = 16
# Its key seals one object only.
_NONCE: Final = bytes(12)
# Fast, and near the best for text. Higher levels cost more time than they save.
LEVEL: Final = 3
MIN_SEALED_BYTES: Final = _HEADER.size + TAG_BYTES


def seal(content: bytes, key: bytes, place: str, *, encrypt: bool) -> bytes:
    body = zstandard.ZstdCompressor(level=LEVEL).compress(content)
    flags = _ENCRYPTED if encrypt else 0
    if len(body) < len(content):
        flags |= _COMPRESSED
    else:
        body = content
    header = _HEADER.pack(_MAGIC, flags, len(content))
    if encrypt:
        header += os.urandom(_SALT_BYTES)
        return header + _cipher(key, header).encrypt(_NONCE, body, header + place.encode())
    return header + body + _checksum(key, header, body, place)


def unseal(sealed: bytes, key: bytes, place: str, *, encrypted: bool) -> bytes:
    """``encrypted``: what it must be. A plain object is not accepted in place of an encrypted one."""
    wrong = damaged(f"{place} has been changed")
    if not MIN_SEALED_BYTES <= len(sealed) <= MAX_OBJECT_BYTES:
        raise wrong
    magic, flags, length = _HEADER.unpack_from(sealed)
    if magic != _MAGIC or flags & ~_COMPRESSED != (_ENCRYPTED if encrypted else 0):
        raise wrong
    start = _HEADER.size + (_SALT_BYTES if encrypted else 0)
    header = sealed[:start]
    if encrypted:
        try:
            body = _cipher(key, header).decrypt(_NONCE, sealed[start:], header + place.encode())
        except (InvalidTag, ValueError):
            raise wrong from None
    else:
        body, tag = sealed[start:-TAG_BYTES], sealed[-TAG_BYTES:]
        if not hmac.compare_digest(tag, _checksum(key, header, body, place)):
            raise wrong
    content = _decompress(body, length, place) if flags & _COMPRESSED else body
    if len(content) != length:
        raise wrong
    return content


def _cipher(key: bytes, header: bytes) -> AESGCM:
    return AESGCM(hmac.digest(key, header, "sha256"))


def _checksum(key: bytes, header: bytes, body: bytes, place: str) -> bytes:
    sum_ = hmac.new(key, b"%d\0" % len(place) + place.encode() + header, "sha256")
    sum_.update(body)
    return sum_.digest()[:TAG_BYTES]


def _decompress(body: bytes, length: int, place: str) -> bytes:
    """The frame says how much it holds, and this much is reserved for it: so that is checked first."""
    try:
        if length > MAX_OBJECT_BYTES or zstandard.get_frame_parameters(body).content_size != length:
            raise damaged(f"{place} has the wrong size")
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=length, allow_extra_data=False)
    except zstandard.ZstdError:
        raise damaged(f"{place} cannot be decompressed") from None
