"""Names in a manifest. A store may be hostile: what is not plainly one name in one folder is refused."""

from __future__ import annotations

from sandlot.domain.errors import StorageProblem
from sandlot.domain.workspaces.objects.limits import MAX_NAME_BYTES, MAX_TARGET_BYTES


def damaged(what: str) -> StorageProblem:
    """The error for an object that does not hold what was saved."""
    return StorageProblem(
        f"The object storage is damaged: {what}. Nothing was loaded. Take another snapshot, or keep "
        "the file again.",
        retryable=False,
        details={"damaged": True},
    )


def check_entry_name(name: bytes, after: bytes = b"") -> bytes:
    """``after``: the name before it in the same folder. Names are in order, so none comes twice."""
    if not 0 < len(name) <= MAX_NAME_BYTES or name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise damaged(f"{name!r:.80} cannot be the name of a file")
    if name <= after:
        raise damaged(f"the file {name!r:.80} is not in its place")
    return name


def check_target(target: bytes) -> bytes:
    """A symlink's target is only text: it may point anywhere, and nothing here follows it."""
    if not 0 < len(target) <= MAX_TARGET_BYTES or b"\0" in target:
        raise damaged("a symbolic link has no valid target")
    return target
