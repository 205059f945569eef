"""Builds the object storage of a worker from settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandlot.config.settings import ServerSettings, read_secret
from sandlot.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from sandlot.worker.workspaces.objects.storage import ObjectStorage

_KEY: Final = re.compile(r"[0-9a-fA-F]{64}")


def build_object_storage(settings: ServerSettings) -> ObjectStorage | None:
    """Not open yet. ``None`` if the settings name none."""
    location = settings.objects_location
    if location is None:
        return None
    try:
        # Only here: it needs libraries that other servers do not.
        from sandlot.worker.workspaces.objects.options import ObjectOptions
        from sandlot.worker.workspaces.objects.storage import ObjectStorage
    except ImportError as error:
        raise InvalidRequest(
            f"SANDLOT_OBJECTS_URL needs the package {error.name}. "
            "In your clone of Sandlot, run: pip install '.[objects]'"
        ) from error
    access_key_id, secret_access_key = _credentials(settings.objects_credentials_file)
    return ObjectStorage(
        ObjectOptions(
            location,
            endpoint=settings.objects_endpoint,
            region=settings.objects_region,
            access_key_id=access_key_id,
            secret_access_key=secret_access_key,
            key=_key(settings.objects_key_file),
        )
    )


def _credentials(path: Path | None) -> tuple[str | None, str | None]:
    if path is None:
        return None, None
    words = read_secret(path, "the credentials file").split()
    if len(words) != 2:
        raise InvalidRequest(
            f"The credentials file {path} must have two lines: the access key id and the secret access key."
        )
    return words[0], words[1]


def _key(path: Path | None) -> bytes | None:
    if path is None:
        return None
    text = read_secret(path, "the key file")
    if _KEY.fullmatch(text) is None:
        raise InvalidRequest(
            f"The key file {path} must have 64 hexadecimal digits. To create one: openssl rand -hex 32"
        )
    return bytes.fromhex(text)
