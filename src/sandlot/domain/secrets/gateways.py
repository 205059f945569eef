"""Gateways: upstreams that a sandbox reaches by name, and to which the worker adds a secret. Pure.

A program calls ``http://gateway.sandlot/openai/v1/models``. The first part of the path names the gateway, and
the rest is asked for at its upstream. An environment declares its gateways:

    gateways:
      openai:
        upstream: https://api.openai.com
        secret: openai
        env:
          OPENAI_BASE_URL: "{gateway}/v1"
          OPENAI_API_KEY: added-by-the-gateway
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import is_name
from sandlot.domain.network.hosts import Host, Target, parse_target, shown
from sandlot.domain.secrets.secret import TLS_PORT, check_secret_name
from sandlot.domain.text.suggestions import did_you_mean
from sandlot.domain.text.variables import check_env

GATEWAY_HOST: Final = Host("gateway.sandlot")
HTTP_PORT: Final = 80
GATEWAY_URL: Final = f"http://{GATEWAY_HOST}"
MAX_GATEWAYS: Final = 50
MAX_INJECTED: Final = 50
# Gateways of the package cache.
RESERVED: Final = ("pypi", "npm")
# In the value of a variable: the URL of the gateway.
PLACE: Final = "{gateway}"

_FIELDS: Final = ("upstream", "secret", "env")
_URL: Final = re.compile(r"(https?)://([^/?#@\s]+)(/[A-Za-z0-9._~/-]*)?")


@dataclass(frozen=True, slots=True)
class Upstream:
    """``path``: what the upstream's own paths begin with; without a slash at its end."""

    target: Target
    tls: bool = True
    path: str = ""

    def __str__(self) -> str:
        port = TLS_PORT if self.tls else HTTP_PORT
        host = self.target.host if self.target.port == port else self.target
        return f"{'https' if self.tls else 'http'}://{host}{self.path}"


@dataclass(frozen=True, slots=True)
class Gateway:
    """``secret``: the name of the secret that is added; None for none.
    ``env``: variables of the sandbox, with ``{gateway}`` in place of the gateway's URL."""

    name: str
    upstream: Upstream
    secret: str | None = None
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def url(self) -> str:
        """What programs in the sandbox call."""
        return f"{GATEWAY_URL}/{self.name}"

    @property
    def variables(self) -> dict[str, str]:
        """What the environment's sandboxes get."""
        return {name: value.replace(PLACE, self.url) for name, value in self.env.items()}


def parse_upstream(text: Any) -> Upstream:
    found = _URL.fullmatch(text) if isinstance(text, str) and len(text) <= 2000 else None
    if found is None:
        raise InvalidRequest(
            f"{shown(str(text))} is not an upstream. Write https://HOST, https://HOST:PORT or "
            "https://HOST/PATH, without a name, a password or a query."
        )
    scheme, authority, path = found.groups()
    tls = scheme == "https"
    target = parse_target(authority, TLS_PORT if tls else HTTP_PORT)
    if tls and not target.host.is_name:
        raise InvalidRequest(f"{shown(authority)} is an address. Write a name: its certificate proves it.")
    path = (path or "").rstrip("/")
    if not is_plain_path(path):
        raise InvalidRequest(f"The path of {shown(str(text))} has an empty part, '.' or '..' in it.")
    return Upstream(target, tls, path)


def parse_gateways(document: Any) -> tuple[Gateway, ...]:
    """What an environment declares under ``gateways``."""
    if not isinstance(document, Mapping) or len(document) > MAX_GATEWAYS:
        raise InvalidRequest(f"gateways must be a mapping of at most {MAX_GATEWAYS} names to gateways.")
    gateways = tuple(_gateway(name, each) for name, each in document.items())
    bound: dict[str, str] = {}
    for gateway in gateways:
        for variable in gateway.env:
            if (other := bound.setdefault(variable, gateway.name)) != gateway.name:
                raise InvalidRequest(
                    f"The gateways {other} and {gateway.name} both set the variable {variable!r:.80}."
                )
    return gateways


def parse_inject(document: Any) -> tuple[str, ...]:
    """The names of the secrets that an environment has added to requests by reading their TLS."""
    if not isinstance(document, list | tuple) or len(document) > MAX_INJECTED:
        raise InvalidRequest(f"inject must be a list of at most {MAX_INJECTED} names of secrets.")
    for name in document:
        check_secret_name(name)
    return tuple(dict.fromkeys(document))


def is_plain_path(path: str) -> bool:
    """Whether all servers read the path alike: no part of it is empty, '.' or '..'."""
    return not path or all(part not in ("", ".", "..") for part in path.removeprefix("/").split("/"))


def _gateway(name: Any, document: Any) -> Gateway:
    if not isinstance(name, str) or not is_name(name):
        raise InvalidRequest(
            f"{shown(str(name))} is not a valid name of a gateway. Use lowercase letters, digits and . _ -."
        )
    if name in RESERVED:
        raise InvalidRequest(f"The gateway {name} belongs to the package cache. Choose another name.")
    if not isinstance(document, Mapping):
        raise InvalidRequest(f"Gateway {name}: write upstream, secret and env.")
    for each in document:
        if each not in _FIELDS:
            raise InvalidRequest(
                f"Gateway {name}: unknown field {each!r:.80}.{did_you_mean(str(each)[:80], _FIELDS)} Fields "
                f"are: {', '.join(_FIELDS)}."
            )
    if "upstream" not in document:
        raise InvalidRequest(f"Gateway {name} has no upstream.")
    upstream = parse_upstream(document["upstream"])
    secret, env = document.get("secret"), document.get("env", {})
    if secret is not None:
        check_secret_name(secret)
        if not upstream.tls:
            raise InvalidRequest(
                f"Gateway {name}: a secret is sent over https only, and the upstream is {upstream}."
            )
    if not isinstance(env, Mapping):
        raise InvalidRequest(f"Gateway {name}: env must be a mapping of variables to their values.")
    check_env(env)
    return Gateway(name, upstream, secret, MappingProxyType(dict(env)))
