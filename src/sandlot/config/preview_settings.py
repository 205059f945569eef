"""Settings of previews."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from sandlot.config.front_door_settings import FrontDoorSettings
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.preview_links import PreviewDomain


class PreviewSettings(FrontDoorSettings):
    previews: Literal["public", "private", "off"] = Field(
        "public",
        description=(
            "Which previews of sandboxes' ports there are. `public`: a caller may make one that everybody "
            "can see. `private`: visitors always need a link. `off`: none. In a fleet, set it on the "
            "coordinators."
        ),
    )
    preview_domain: str | None = Field(
        None,
        description=(
            "Domain for previews, such as `*.preview.example.com`, which means https. Each preview then "
            "has a host of its own. Use a domain that serves nothing else, with a wildcard in its DNS and "
            "in its certificate. If unset, previews have paths on this server, and their pages run without "
            "an origin. `http://*.localhost:8000` works for a browser on the same machine. In a fleet, set "
            "it on the coordinators."
        ),
    )

    @field_validator("preview_domain")
    @classmethod
    def _check_domain(cls, value: str | None) -> str | None:
        try:
            if value is not None:
                PreviewDomain.parse(value)
        except InvalidRequest as error:
            raise ValueError(error.message) from None
        return value
