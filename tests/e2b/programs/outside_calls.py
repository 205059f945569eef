"""Who reaches a sandbox, and what it reaches. ``outside_calls.py URL KEY sync|async PORT``; it needs ``base``.

``a.test`` and ``b.test`` are a host outside that answers on PORT. On port 80 nobody may answer, but a connection
that is allowed does not get the proxy's 403.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request

URL, KEY, FORM, PORT = sys.argv[1:5]
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import caller, raises_soon, run  # noqa: E402

import e2b  # noqa: E402
from e2b import AsyncSandbox, Sandbox  # noqa: E402

got = caller(FORM)
SDK = Sandbox if FORM == "sync" else AsyncSandbox
ONLY_LISTED = {"deny_out": [e2b.ALL_TRAFFIC]}


class Made:
    sandbox: Sandbox | AsyncSandbox


# --- what it reaches ----------------------------------------------------------------------------


async def answers(sandbox, *hosts: str) -> list[str]:
    """The status of each host's answer: 200 by the host, 403 by the proxy. The connections are made now."""
    urls = " ".join(f"http://{host}/" for host in hosts)
    ran = await got(
        sandbox.commands.run, f"for url in {urls}; do curl -s -m 20 -o out -w '%{{http_code}} ' $url; done"
    )
    return ran.stdout.split()


A, B = f"a.test:{PORT}", f"b.test:{PORT}"


async def check_a_closed_network() -> None:
    sandbox = await got(SDK.create, "base", timeout=300, allow_internet_access=False)
    Made.sandbox = sandbox
    assert await answers(sandbox, A, B, "a.test") == ["403", "403", "403"]
    error = await raises_soon(
        e2b.CommandExitException, got(sandbox.commands.run, f"curl -fsS -m 20 http://{A}/")
    )
    assert f"{A} is not allowed by the sandbox's network policy" in (error.error or ""), error


async def check_update_network() -> None:
    sandbox = Made.sandbox
    await got(sandbox.update_network, {"allow_out": [A], **ONLY_LISTED})
    assert await answers(sandbox, A, B, "a.test") == ["200", "403", "403"]
    await got(sandbox.update_network, {"allow_out": [B], **ONLY_LISTED})
    assert await answers(sandbox, A, B) == ["403", "200"], "the whole policy is replaced"
    await got(sandbox.update_network, {"allow_internet_access": False})
    assert await answers(sandbox, A, B) == ["403", "403"]
    await got(sandbox.update_network, {"allow_internet_access": True})
    assert await answers(sandbox, A) == ["403"], "the web's ports only"
    assert "403" not in await answers(sandbox, "a.test", "b.test")
    await got(SDK.update_network, sandbox.sandbox_id, {"deny_out": ["a.test"]})
    (denied, allowed) = await answers(sandbox, "a.test", "b.test")
    assert (denied, allowed != "403") == ("403", True), (denied, allowed)


async def check_a_network_from_the_start() -> None:
    sandbox = await got(SDK.create, "base", network={"allow_out": [A], **ONLY_LISTED})
    try:
        assert await answers(sandbox, A, B) == ["200", "403"]
    finally:
        await got(sandbox.kill)


# --- who reaches it -----------------------------------------------------------------------------


def fetched(host: str, path: str = "/", cookie: str = "") -> tuple[int, str, dict[str, str]]:
    """Of our server, as a browser would that has found the host there."""
    request = urllib.request.Request(URL + path, headers={"Host": host, "Cookie": cookie})
    try:
        with OPENER.open(request) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), dict(error.headers)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


OPENER = urllib.request.build_opener(NoRedirect)


def exposed(port: int, **body: object) -> str:
    """The URL of the preview. E2B's SDK has no call for it."""
    path = f"/v1/sessions/ses_{Made.sandbox.sandbox_id}/ports/{port}"
    headers = {"X-API-KEY": KEY, "Content-Type": "application/json"}
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers, method="PUT")
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["url"]


async def check_get_host() -> None:
    sandbox = Made.sandbox
    await got(sandbox.files.write, "site/page.html", "served inside")
    for port in (8000, 8001):
        await got(sandbox.commands.run, f"python3 -m http.server {port} -d site", background=True)
        await got(
            sandbox.commands.run, f"until curl -s --noproxy '*' 127.0.0.1:{port}; do sleep 0.1; done >out"
        )
    host = sandbox.get_host(8000)
    assert host == f"8000-{sandbox.sandbox_id}.preview.test"
    status, text, _ = fetched(host, "/page.html")
    assert (status, "served inside" in text) == (404, False), "not before it is exposed"
    assert exposed(8000, public=True) == f"http://{host}/"
    assert fetched(host, "/page.html")[:2] == (200, "served inside")
    assert fetched(host, "/none.html")[0] == 404
    assert fetched(sandbox.get_host(8001), "/page.html")[0] == 404, "another port is not"


async def check_get_host_with_a_link() -> None:
    host = Made.sandbox.get_host(8001)
    link = exposed(8001)
    assert link.startswith(f"http://{host}/?")
    status, _, headers = fetched(host, link.removeprefix(f"http://{host}"))
    assert status == 307
    cookie = headers["set-cookie"].partition(";")[0]
    assert fetched(host, "/page.html", cookie)[:2] == (200, "served inside")
    assert fetched(host, "/page.html")[0] == 404
    assert fetched(Made.sandbox.get_host(8000), "/page.html", cookie)[0] == 200, "that one is public"


async def check_the_end() -> None:
    host = Made.sandbox.get_host(8000)
    assert await got(Made.sandbox.kill)
    assert fetched(host, "/page.html")[0] == 404


run(globals())
