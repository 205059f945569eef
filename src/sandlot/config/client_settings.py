"""Where the client finds its server. Standard library only: the SDK imports this."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from sandlot.config.variable_names import check_client_variables

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The key stays out of ``repr``, so that it does not end up in a log."""

    url: str
    api_key: str | None = field(default=None, repr=False)


def client_settings(url: str | None = None, api_key: str | None = None) -> ClientSettings:
    """What the caller gives wins, then SANDLOT_URL and SANDLOT_API_KEY; an empty variable is not set.

    A variable that is all but one of these two is an error, not a server that is asked without a key.
    A key has no spaces around it: what a file or a copy left there is no part of it, as for the server.
    """
    if not url or not api_key:
        check_client_variables(os.environ)
    return ClientSettings(
        url=(url or os.environ.get("SANDLOT_URL") or DEFAULT_URL).rstrip("/"),
        api_key=(api_key or os.environ.get("SANDLOT_API_KEY") or "").strip() or None,
    )
