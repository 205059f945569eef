"""Where an object storage is: ``file:///folder`` or ``s3://bucket/prefix``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from sandlot.domain.errors import InvalidRequest

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


@dataclass(frozen=True, slots=True)
class Location:
    """``folder``: an absolute path; empty for S3. ``bucket`` and ``prefix``: of S3."""

    folder: str = ""
    bucket: str = ""
    prefix: str = ""

    def __str__(self) -> str:
        if self.folder:
            return f"file://{self.folder}"
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


def parse_location(url: str) -> Location:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _wrong(url) from None
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise _wrong(url)
    if parts.scheme == "file":
        folder = unquote(parts.path)
        if parts.netloc or not folder.strip("/") or ".." in folder.split("/") or "\0" in folder:
            raise _wrong(url)
        return Location(folder="/" + folder.strip("/"))
    if parts.scheme == "s3":
        prefix = parts.path.strip("/")
        dots = {".", ".."} & set(prefix.split("/"))
        if _BUCKET.fullmatch(parts.netloc) and not dots and (not prefix or _PREFIX.fullmatch(prefix)):
            return Location(bucket=parts.netloc, prefix=prefix)
    raise _wrong(url)


def _wrong(url: str) -> InvalidRequest:
    # The text is left out if it could hold a password.
    shown = "the given URL" if "@" in url else f"{url!r:.200}"
    return InvalidRequest(f"{shown} is no object storage. Use file:///FOLDER or s3://BUCKET/PREFIX.")
