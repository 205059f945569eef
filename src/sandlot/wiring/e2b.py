"""What a server needs for E2B's API: the secret that the tokens of sandboxes are derived from."""

from __future__ import annotations

import hmac
from typing import Final

from sandlot.api.e2b.options import E2bOptions
from sandlot.config.settings import ServerSettings
from sandlot.domain.network.preview_links import PreviewDomain

# What a fleet's coordinators derive their secret for. Those with the same key accept each other's tokens.
PURPOSE: Final = b"sandlot e2b sandbox tokens"


def e2b_options(settings: ServerSettings, secret: bytes) -> E2bOptions | None:
    """None if E2B's API is switched off. ``secret``: of this server or its fleet, for any purpose."""
    if not settings.e2b:
        return None
    domain = None if settings.preview_domain is None else PreviewDomain.parse(settings.preview_domain)
    return E2bOptions(hmac.digest(secret, PURPOSE, "sha256"), None if domain is None else domain.authority)
