"""A real package from the index that this machine uses itself: over TLS, by a policy of its hosts alone.

The index may be private, so no message of these tests names it.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.domain.execution import Verdict
from tests.network.conftest import ENVIRONMENTS, opened_worker

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

PACKAGE = "six"  # one module, without dependencies
ANSWERS_WITHIN_S = 5.0
OF_PIP_ITSELF = "https://pypi.org/simple"
VARIABLES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
AUTHORITIES = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))


@dataclass(frozen=True)
class RealIndex:
    """``hosts``: of the index, and of the files that its page of the package leads to."""

    url: str
    hosts: frozenset[tuple[str, int]]

    @property
    def private_addresses(self) -> tuple[str, ...]:
        found = {each[4][0] for host, port in self.hosts for each in socket.getaddrinfo(host, port)}
        return tuple(sorted(str(address) for address in found if not ipaddress.ip_address(address).is_global))

    def hidden_in(self, text: str) -> str:
        """The text without what tells where the index is."""
        parts = urlsplit(self.url)
        for word in {parts.username, parts.password, *(host for host, _ in self.hosts)} - {None}:
            text = text.replace(str(word), "[hidden]")
        return text


def configured_index() -> str:
    if (named := next(filter(None, map(os.environ.get, VARIABLES)), None)) is not None:
        return named
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    found = re.search(r"^(?:global|install|:env:)\.index-url='(.*)'$", listed, re.MULTILINE)
    return OF_PIP_ITSELF if found is None else found[1]


@pytest.fixture(scope="module")
def index() -> RealIndex:
    url = configured_index().rstrip("/")
    if urlsplit(url).scheme not in ("http", "https"):
        pytest.skip("The index of this machine is a folder.")
    page = f"{url}/{PACKAGE}/"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # as the worker connects
    try:
        with direct.open(page, timeout=ANSWERS_WITHIN_S) as answer:
            links = re.findall(r'href="([^"#]+\.whl)', answer.read().decode())
    except (OSError, ValueError) as error:
        reason = error.code if isinstance(error, urllib.error.HTTPError) else type(error).__name__
        pytest.skip(f"The index of this machine does not answer within {ANSWERS_WITHIN_S:g} s: {reason}.")
    addresses = [urlsplit(address) for address in (url, *(urljoin(page, link) for link in links))]
    ports = {"http": 80, "https": 443}
    hosts = frozenset((each.hostname or "", each.port or ports[each.scheme]) for each in addresses)
    return RealIndex(url, hosts)


async def test_pip_installs_a_real_package(index: RealIndex) -> None:
    async with opened_worker(egress_allow=index.private_addresses) as service:
        for tier, environment in ENVIRONMENTS.items():
            env = {"PIP_INDEX_URL": index.url, "PIP_CERT": "/workspace/authorities.pem"}
            async with AsyncClient(service=service).create(environment, env=env) as session:
                if AUTHORITIES.exists():
                    await session.files.write("authorities.pem", AUTHORITIES.read_bytes())
                install = f"pip install --no-deps --only-binary=:all: {PACKAGE}"
                denied = await session.run(install, timeout_s=120)
                assert denied.verdict is Verdict.EGRESS_DENIED, index.hidden_in(denied.output)
                await session.network.allow(*(f"{host}:{port}" for host, port in index.hosts))
                result = await session.run(
                    f"{install} && python3 -c 'import {PACKAGE}; print({PACKAGE}.__file__)'", timeout_s=120
                )
                shown = index.hidden_in(result.output)
                assert result.ok, f"{tier}: {shown}"
                assert "/workspace/" in shown.splitlines()[-1]
                other = await session.run("curl -fsS https://example.com/")
                assert [each.target for each in other.denied] == ["example.com:443"]
