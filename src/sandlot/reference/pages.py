"""The generated pages by file name, each with its generator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sandlot.api.openapi import description
from sandlot.config.settings_doc import settings_doc
from sandlot.reference.cli_page import cli_page
from sandlot.reference.errors_page import errors_page
from sandlot.reference.events_page import events_page
from sandlot.reference.http_page import http_page
from sandlot.reference.metrics_page import metrics_page
from sandlot.reference.sdk_page import sdk_page

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "settings.md": settings_doc,
    "openapi.json": description,
    "cli.md": cli_page,
    "sdk.md": sdk_page,
    "http.md": http_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
    "events.md": events_page,
}
