"""The options of a worker for volumes."""

from __future__ import annotations

from dataclasses import dataclass

from sandlot.domain.volumes.volume import DEFAULT_MAX_COUNT, DEFAULT_MAX_TENANT_BYTES, DEFAULT_QUOTA_BYTES


@dataclass(frozen=True, slots=True)
class VolumeOptions:
    """``quota_bytes``: how large a volume may grow that nobody gave a size. ``max_count`` and
    ``max_tenant_bytes``: how many volumes one tenant has at most, and of which size together.
    """

    quota_bytes: int = DEFAULT_QUOTA_BYTES
    max_count: int = DEFAULT_MAX_COUNT
    max_tenant_bytes: int = DEFAULT_MAX_TENANT_BYTES
