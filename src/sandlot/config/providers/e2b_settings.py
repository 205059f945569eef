"""Settings of the provider that makes sandboxes at E2B."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from sandlot.config.workspaces.object_settings import ObjectSettings


class E2BSettings(ObjectSettings):
    e2b_api_key: SecretStr | None = Field(
        None,
        description=(
            "API key of E2B, for environments with `provider: e2b`. It stays in the worker: no sandbox, "
            "history or log has it."
        ),
    )
    e2b_api_key_file: Path | None = Field(
        None,
        description=(
            "File with the API key of E2B, for secrets that must not be in a process's environment. Cannot "
            "be combined with SANDLOT_E2B_API_KEY."
        ),
    )
    e2b_api_url: str | None = Field(
        None,
        pattern=r"^https?://\S+$",
        description="Address of another server that speaks E2B's API, instead of E2B's cloud.",
    )
    e2b_sandbox_url: str | None = Field(
        None,
        pattern=r"^https?://\S+$",
        description="Address where the sandboxes of that server answer. E2B's cloud needs none.",
    )
    e2b_timeout_s: int = Field(
        900,
        ge=60,
        le=86_400,
        description=(
            "Seconds after which E2B ends a sandbox that no worker extends. The worker extends those in "
            "use three times in this time. So it is how long a worker may be down without losing them."
        ),
    )
    e2b_user: Literal["root", "user"] = Field(
        "root",
        description=(
            "User that the agent runs as in sandboxes of E2B. `user` is for a server whose sandboxes have "
            "no root: there, commands can end the agent, and with it their sandbox."
        ),
    )
