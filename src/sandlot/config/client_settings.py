"""Where the client finds its server. Standard library only, because the SDK imports this module."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from sandlot.config.variable_names import check_client_variables

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The server's URL and key. The key is not in ``repr``, so that it does not end up in a log."""

    url: str
    api_key: str | None = field(default=None, repr=False)


def client_settings(url: str | None = None, api_key: str | None = None) -> ClientSettings:
    """The caller's values, else SANDLOT_URL and SANDLOT_API_KEY.

    An empty variable counts as not set. A variable whose name is a near miss of these two is an
    error; otherwise the client would call the server without a key. Spaces around a key, left there
    by a file or by copying, are removed, as the server does.
    """
    if not url or not api_key:
        check_client_variables(os.environ)
    return ClientSettings(
        url=(url or os.environ.get("SANDLOT_URL") or DEFAULT_URL).rstrip("/"),
        api_key=(api_key or os.environ.get("SANDLOT_API_KEY") or "").strip() or None,
    )
