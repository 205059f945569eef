"""What a server needs for previews and for E2B's API: secrets that sign links and tokens, and addresses."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from sandlot.api.e2b.options import E2bOptions
from sandlot.api.previews.options import PreviewOptions
from sandlot.config.settings import ServerSettings
from sandlot.domain.network.preview_links import LinkTokens, PreviewDomain
from sandlot.domain.templates.build import TemplateBuilds
from sandlot.wiring.http import allowed_hosts

SECRET_FILE: Final = "preview-links.key"
SECRET_BYTES: Final = 32
# What a fleet's coordinators derive their secret for. Those with the same key accept each other's links.
PURPOSE: Final = b"sandlot preview links"
TOKENS_PURPOSE: Final = b"sandlot e2b sandbox tokens"


def preview_options(settings: ServerSettings, secret: bytes) -> PreviewOptions | None:
    """None if previews are switched off."""
    if settings.previews == "off":
        return None
    return PreviewOptions(
        LinkTokens(secret),
        None if settings.preview_domain is None else PreviewDomain.parse(settings.preview_domain),
        public=settings.previews == "public",
        allowed_hosts=allowed_hosts(settings),
        max_body_bytes=settings.max_upload_bytes,
    )


def e2b_options(
    settings: ServerSettings, secret: bytes, builds: TemplateBuilds | None = None
) -> E2bOptions | None:
    """None if E2B's API is switched off. ``secret``: of this server or its fleet, for any purpose."""
    if not settings.e2b:
        return None
    domain = None if settings.preview_domain is None else PreviewDomain.parse(settings.preview_domain)
    return E2bOptions(
        hmac.digest(secret, TOKENS_PURPOSE, "sha256"), None if domain is None else domain.authority, builds
    )


def secret_in(folder: Path) -> bytes:
    """The secret of a single server, so that links survive its restart. Made at the first start."""
    file = folder / SECRET_FILE
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = file.read_bytes() if file.exists() else b""
    if len(known) == SECRET_BYTES:
        return known
    new, secret = file.with_suffix(".new"), secrets.token_bytes(SECRET_BYTES)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        os.fchmod(descriptor, 0o600)
        out.write(secret)
    new.replace(file)
    return secret
