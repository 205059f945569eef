"""The options of a worker for artifacts."""

from __future__ import annotations

from dataclasses import dataclass

from sandlot.domain.artifacts.artifact import (
    DEFAULT_MAX_AGE_S,
    DEFAULT_MAX_COUNT,
    DEFAULT_MAX_FILE_BYTES,
    DEFAULT_MAX_SESSION_BYTES,
    DEFAULT_MAX_TENANT_BYTES,
    MAX_FILES,
)


@dataclass(frozen=True, slots=True)
class ArtifactOptions:
    """What is kept. A file or a session with more than its maximum is refused the rest. Of a tenant with more
    than its maximum, the oldest artifacts are deleted.

    ``min_free_bytes``: as in ``WorkerOptions``. ``declared_within_s``: how long the end of a session waits
    for the files that it declared.
    """

    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES
    max_session_bytes: int = DEFAULT_MAX_SESSION_BYTES
    max_session_count: int = MAX_FILES
    max_tenant_bytes: int = DEFAULT_MAX_TENANT_BYTES
    max_count: int = DEFAULT_MAX_COUNT
    max_age_s: float = DEFAULT_MAX_AGE_S
    declared_within_s: float = 60.0
