"""Registries as programs see them through the package cache. Pure.

http://gateway.sandlot/pypi/simple/NAME/         a page of the index: which files there are
http://gateway.sandlot/pypi/files/HOST/PATH      a file
http://gateway.sandlot/npm/NAME                  a page: which versions there are
http://gateway.sandlot/npm/NAME/-/FILE.tgz       a file

Pages change, and files never do. A path that is none of these is not asked for anywhere.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urljoin, urlsplit

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.hosts import Host, Target, parse_target
from sandlot.domain.secrets.gateways import GATEWAY_HOST, GATEWAY_URL, HTTP_PORT, Upstream
from sandlot.domain.secrets.secret import TLS_PORT

DEFAULT_PYPI: Final = "https://pypi.org/simple"
DEFAULT_NPM: Final = "https://registry.npmjs.org"
PYPI_JSON: Final = "application/vnd.pypi.simple.v1+json"
PYPI_HTML: Final = "text/html"
NPM_SHORT: Final = "application/vnd.npm.install-v1+json"
NPM_FULL: Final = "application/json"

# Where well-known indexes keep their files, if not on their own host.
_FILE_HOSTS: Final = {
    "pypi.org": "files.pythonhosted.org",
    "test.pypi.org": "test-files.pythonhosted.org",
}
_MAX_PATH_CHARS: Final = 1000
_PROJECT: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_FILE_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~+!@=,%-]+)+")
_FRAGMENT: Final = re.compile(r"[A-Za-z0-9_.=&-]+")
_NPM_NAME: Final = r"(?:@[A-Za-z0-9._~-]+(?:/|%2[fF]))?[A-Za-z0-9_~][A-Za-z0-9._~-]*"
_NPM_PAGE: Final = re.compile(rf"/({_NPM_NAME})(/[A-Za-z0-9._~+-]+)?")
_NPM_FILE: Final = re.compile(rf"/({_NPM_NAME})/-/[A-Za-z0-9._~+@-]+\.tgz")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to ask a registry for.

    path: at the host, as it is sent.
    accept: in which form; empty for a file.
    """

    target: Target
    tls: bool
    path: str
    accept: str = ""

    @property
    def is_file(self) -> bool:
        return not self.accept

    @property
    def url(self) -> str:
        return f"{Upstream(self.target, self.tls)}{self.path}"

    @property
    def key(self) -> str:
        """Names it in the cache. Forms of one page are different things."""
        return f"{self.accept} {self.url}".strip()


class Registry(ABC):
    """``name``: of its gateway. ``permission``: what a session must be allowed to connect to, to use it.
    That is the registry itself, whatever mirror the operator has chosen. ``link_field``: which field of its
    JSON pages has the link to a file."""

    name: str
    permission: Target
    link_field: str

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream

    @abstractmethod
    def wanted(self, path: str, accept: str) -> Wanted | None:
        """What a path below the gateway and an Accept header mean; None if nothing."""

    @abstractmethod
    def link(self, page: Wanted, url: str) -> str | None:
        """Where a link on a page leads instead; None to leave it as it is."""

    @property
    @abstractmethod
    def variables(self) -> dict[str, str]:
        """What lets programs in a sandbox find it."""

    def _wanted(self, path: str, accept: str) -> Wanted:
        return Wanted(self.upstream.target, self.upstream.tls, self.upstream.path + path, accept)


class Pypi(Registry):
    name = "pypi"
    link_field = "url"
    permission = Target(Host("pypi.org"), TLS_PORT)

    def __init__(self, upstream: Upstream) -> None:
        super().__init__(upstream)
        port = upstream.target.port
        other = _FILE_HOSTS.get(upstream.target.host.text)
        self._file_hosts = {upstream.target, *([] if other is None else [Target(Host(other), port)])}

    def wanted(self, path: str, accept: str) -> Wanted | None:
        if len(path) > _MAX_PATH_CHARS:
            return None
        if path.startswith("/simple/"):
            project = path.removeprefix("/simple/").removesuffix("/")
            if _PROJECT.fullmatch(project) is None:
                return None
            # As the index spells it, which otherwise answers with a redirect.
            normal = re.sub(r"[-_.]+", "-", project).lower()
            return self._wanted(f"/{normal}/", PYPI_JSON if "simple.v1+json" in accept else PYPI_HTML)
        if path.startswith("/files/"):
            authority, slash, rest = path.removeprefix("/files/").partition("/")
            try:
                # pip writes the colon before a port as %3A.
                target = parse_target(unquote(authority), self._default_port)
            except InvalidRequest:
                return None
            if target in self._file_hosts and _is_file_path(slash + rest):
                return Wanted(target, self.upstream.tls, slash + rest)
        return None

    def link(self, page: Wanted, url: str) -> str | None:
        try:
            split = urlsplit(urljoin(page.url, url))
            target = parse_target(split.netloc, self._default_port)
        except (ValueError, InvalidRequest):  # the first for what cannot be a URL at all
            return None
        same_scheme = split.scheme == ("https" if self.upstream.tls else "http")
        if not same_scheme or target not in self._file_hosts or not _is_file_path(split.path):
            return None
        if split.query:
            return None
        host = target.host if target.port == self._default_port else target
        fragment = f"#{split.fragment}" if _FRAGMENT.fullmatch(split.fragment) else ""
        return f"/{self.name}/files/{host}{split.path}{fragment}"

    @property
    def variables(self) -> dict[str, str]:
        url = f"{GATEWAY_URL}/{self.name}/simple/"
        return {
            "PIP_INDEX_URL": url,
            "PIP_TRUSTED_HOST": str(GATEWAY_HOST),  # pip wants to be told that http is meant
            "UV_DEFAULT_INDEX": url,
        }

    @property
    def _default_port(self) -> int:
        return TLS_PORT if self.upstream.tls else HTTP_PORT


class Npm(Registry):
    name = "npm"
    link_field = "tarball"
    permission = Target(Host("registry.npmjs.org"), TLS_PORT)

    def wanted(self, path: str, accept: str) -> Wanted | None:
        if len(path) > _MAX_PATH_CHARS or not _without_dots(path):
            return None
        if _NPM_FILE.fullmatch(path) is not None:
            return self._wanted(path, "")
        if (page := _NPM_PAGE.fullmatch(path)) is not None:
            name = page[1].replace("/", "%2f").replace("%2F", "%2f")
            form = NPM_SHORT if NPM_SHORT in accept else NPM_FULL
            return self._wanted(f"/{name}{page[2] or ''}", form)
        return None

    def link(self, page: Wanted, url: str) -> str | None:
        base = str(self.upstream)
        path = url.removeprefix(base)
        if path == url or _NPM_FILE.fullmatch(path) is None or not _without_dots(path):
            return None
        return f"{GATEWAY_URL}/{self.name}{path}"

    @property
    def variables(self) -> dict[str, str]:
        return {"npm_config_registry": f"{GATEWAY_URL}/{self.name}/"}


def _is_file_path(path: str) -> bool:
    return len(path) <= _MAX_PATH_CHARS and _FILE_PATH.fullmatch(path) is not None and _without_dots(path)


def _without_dots(path: str) -> bool:
    """Whether all servers read the path alike, also after they have decoded it."""
    return not {".", ".."} & set(re.split(r"[/\\]", unquote(path)))
