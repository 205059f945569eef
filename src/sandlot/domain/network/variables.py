"""The variables by which programs inside a sandbox find the proxy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# On 127.0.0.1 inside every sandbox of this machine.
PROXY_PORT: Final = 3128
# In sandboxes elsewhere, where another Sandlot around them may have the first one.
REMOTE_PROXY_PORT: Final = 3127
PROXY_PORTS: Final = frozenset({PROXY_PORT, REMOTE_PROXY_PORT})


def local_address(port: int) -> str:
    return f"127.0.0.1:{port}"


_NO_PROXY: Final = "localhost,127.0.0.1,::1"


def proxy_variables(port: int = PROXY_PORT) -> Mapping[str, str]:
    proxy = f"http://{local_address(port)}"
    return {
        "HTTP_PROXY": proxy,
        "HTTPS_PROXY": proxy,
        "NO_PROXY": _NO_PROXY,
        # Programs differ in which case they read, and curl reads http_proxy in lower case alone.
        "http_proxy": proxy,
        "https_proxy": proxy,
        "no_proxy": _NO_PROXY,
        "NODE_USE_ENV_PROXY": "1",
        # A denial is final, and these tools would repeat it for many seconds. One repetition is left for
        # hosts that fail for a moment: pip makes it at once.
        "PIP_RETRIES": "1",
        "npm_config_fetch_retries": "1",
        "npm_config_fetch_retry_mintimeout": "200",
        "npm_config_fetch_retry_maxtimeout": "1000",
    }


NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})


def with_proxy(
    env: Mapping[str, str], more: Mapping[str, str] = NO_VARIABLES, port: int = PROXY_PORT
) -> dict[str, str]:
    """A session's variables with those of the proxy and, in ``more``, of what it reaches by it. The session's
    own win: nothing else leads outside, so a session that sets them reaches less, never more."""
    return {**proxy_variables(port), **more, **env}
