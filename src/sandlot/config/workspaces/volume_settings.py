"""Settings for volumes: how large they may grow, and how many a tenant may have."""

from __future__ import annotations

from pydantic import Field

from sandlot.config.workspaces.artifact_settings import ArtifactSettings
from sandlot.config.workspaces.workspace_settings import Size
from sandlot.domain.volumes.volume import (
    DEFAULT_MAX_COUNT,
    DEFAULT_MAX_TENANT_BYTES,
    DEFAULT_QUOTA_BYTES,
    MAX_QUOTA_BYTES,
    MIN_QUOTA_BYTES,
)


class VolumeSettings(ArtifactSettings):
    volume_quota: Size = Field(
        DEFAULT_QUOTA_BYTES,
        ge=MIN_QUOTA_BYTES,
        le=MAX_QUOTA_BYTES,
        description=(
            "How large a volume may grow if its create names no size, in bytes or with a unit, as `10g`. "
            "Volumes need btrfs with quotas: run `sandlot storage init` as root."
        ),
    )
    volumes_per_tenant: int = Field(
        DEFAULT_MAX_COUNT,
        ge=0,
        le=100_000,
        description="How many volumes one tenant may have on this worker. 0: no new volumes.",
    )
    volume_bytes_per_tenant: Size = Field(
        DEFAULT_MAX_TENANT_BYTES,
        ge=0,
        le=MAX_QUOTA_BYTES,
        description=(
            "How large all volumes of one tenant on this worker may grow together, in bytes or with a unit. "
            "The sizes that volumes were created with count, not what they use."
        ),
    )
