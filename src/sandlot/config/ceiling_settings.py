"""Settings for what one session may ask for, and for what all sessions together may be promised."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from sandlot.config.preview_settings import PreviewSettings
from sandlot.domain.capacity.limits import DEFAULT_CEILINGS, LIMIT_RANGES, Limits


def _ceiling_field(limit: str, description: str) -> Any:
    """A setting with the same range as the limit itself."""
    low, high = LIMIT_RANGES[limit]
    return Field(getattr(DEFAULT_CEILINGS, limit), ge=low, le=high, description=description)


class CeilingSettings(PreviewSettings):
    """The server's ceilings. An environment's ``max_limits`` take precedence."""

    max_memory_bytes: int = _ceiling_field(
        "memory_bytes",
        "Maximum memory that a session may ask for, in bytes, if its environment states no "
        "`max_limits`. A request for more gets status 422. An environment's own limits may be higher.",
    )
    max_cpus: float = _ceiling_field("cpus", "The same for processor cores.")
    max_pids: int = _ceiling_field("pids", "The same for processes and threads.")
    max_tmp_bytes: int = _ceiling_field("tmp_bytes", "The same for bytes in /tmp.")
    max_shm_bytes: int = _ceiling_field("shm_bytes", "The same for bytes of shared memory.")
    max_open_files: int = _ceiling_field("open_files", "The same for open files.")
    overcommit_memory: float = Field(
        1.5,
        ge=0.1,
        le=1000,
        description=(
            "How many times the machine's memory, minus 1 GiB, may be promised to sessions as their "
            "limits. A create that exceeds it gets status 503; a fleet sends it to another worker."
        ),
    )
    overcommit_cpus: float = Field(
        8.0, ge=0.1, le=1000, description="The same for cores. Processes are never overcommitted."
    )

    @property
    def ceilings(self) -> Limits:
        return Limits(
            memory_bytes=self.max_memory_bytes,
            cpus=self.max_cpus,
            pids=self.max_pids,
            tmp_bytes=self.max_tmp_bytes,
            shm_bytes=self.max_shm_bytes,
            open_files=self.max_open_files,
        )
