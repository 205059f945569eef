"""Settings of E2B's API."""

from __future__ import annotations

from pydantic import Field

from sandlot.config.preview_settings import PreviewSettings


class E2bSettings(PreviewSettings):
    e2b: bool = Field(
        True,
        description=(
            "Whether E2B's own SDKs can use this server, beside Sandlot's. It needs the same API keys, and "
            "gives them nothing else than Sandlot's API does. In a fleet, set it on the coordinators."
        ),
    )
