"""Settings for artifacts: how much is kept of files that outlive their sessions, and for how long."""

from __future__ import annotations

from pydantic import Field

from sandlot.config.workspaces.workspace_settings import (
    TEN_YEARS_S,
    Duration,
    Size,
    WorkspaceSettings,
)
from sandlot.domain.artifacts.artifact import (
    DEFAULT_MAX_AGE_S,
    DEFAULT_MAX_COUNT,
    DEFAULT_MAX_FILE_BYTES,
    DEFAULT_MAX_SESSION_BYTES,
    DEFAULT_MAX_TENANT_BYTES,
)


class ArtifactSettings(WorkspaceSettings):
    artifact_max_bytes: Size = Field(
        DEFAULT_MAX_FILE_BYTES,
        ge=1,
        description=(
            "How large one artifact may be, in bytes or with a unit, such as `256m`. A larger file is not "
            "kept, and the answer says so. Artifacts are in `artifacts` in SANDLOT_DATA_DIR."
        ),
    )
    artifact_max_session_bytes: Size = Field(
        DEFAULT_MAX_SESSION_BYTES,
        ge=1,
        description=(
            "How large the artifacts of one session may be together. Beyond it, its files are not kept. A "
            "session keeps at most 1,000 files."
        ),
    )
    artifact_max_tenant_bytes: Size = Field(
        DEFAULT_MAX_TENANT_BYTES,
        ge=1,
        description=(
            "How large the artifacts of one tenant may be together on this worker. Beyond it, the tenant's "
            "oldest are deleted."
        ),
    )
    artifact_max_count: int = Field(
        DEFAULT_MAX_COUNT,
        ge=1,
        le=1_000_000,
        description=(
            "How many artifacts one tenant may have on this worker. Beyond it, the tenant's oldest are "
            "deleted."
        ),
    )
    artifact_max_age: Duration = Field(
        DEFAULT_MAX_AGE_S,
        gt=0,
        le=TEN_YEARS_S,
        description="How long an artifact is kept, in seconds or with a unit, such as `12h` or `30d`.",
    )
