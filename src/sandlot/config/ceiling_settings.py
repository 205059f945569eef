"""Settings of what one session may ask for, and of what all of them may be promised together."""

from __future__ import annotations

from pydantic import Field

from sandlot.config.front_door_settings import FrontDoorSettings
from sandlot.domain.limits import DEFAULT_CEILINGS, MIB, Limits


class CeilingSettings(FrontDoorSettings):
    """An environment's ``max_limits`` stand before these."""

    max_memory_bytes: int = Field(
        DEFAULT_CEILINGS.memory_bytes,
        ge=32 * MIB,
        le=1024 * 1024 * MIB,
        description=(
            "Bytes; the most memory that a session may ask for where its environment states no "
            "`max_limits`. More is answered with 422. An environment's own limits may be higher."
        ),
    )
    max_cpus: float = Field(
        DEFAULT_CEILINGS.cpus,
        ge=0.05,
        le=1024,
        description="The same for processors.",
    )
    max_pids: int = Field(
        DEFAULT_CEILINGS.pids,
        ge=32,
        le=65_536,
        description="The same for processes and threads.",
    )
    max_tmp_bytes: int = Field(
        DEFAULT_CEILINGS.tmp_bytes,
        ge=MIB,
        le=64 * 1024 * MIB,
        description="The same for bytes in /tmp.",
    )
    max_shm_bytes: int = Field(
        DEFAULT_CEILINGS.shm_bytes,
        ge=MIB,
        le=64 * 1024 * MIB,
        description="The same for bytes of shared memory.",
    )
    max_open_files: int = Field(
        DEFAULT_CEILINGS.open_files,
        ge=64,
        le=1_048_576,
        description="The same for open files.",
    )
    overcommit_memory: float = Field(
        1.5,
        ge=0.1,
        le=1000,
        description=(
            "How many times the machine's memory, but for 1 GiB, may be given to sessions as their limits. A "
            "create that would pass it is answered with 503, and a fleet sends it to another worker."
        ),
    )
    overcommit_cpus: float = Field(
        8.0, ge=0.1, le=1000, description="The same of its cores. Its processes are never given twice."
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
