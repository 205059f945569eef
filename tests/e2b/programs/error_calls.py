"""What each refusal of the server becomes in E2B's SDK. ``error_calls.py URL`` and keys as JSON.

The server has room for a few sandboxes only, and small workspaces. ``limited`` is a key for one sandbox, ``slow`` one
for a call every ten minutes, ``reader`` one that may create nothing, and ``revoked`` one that has ended.
"""

from __future__ import annotations

import json
import os
import sys

URL, KEYS = sys.argv[1], json.loads(sys.argv[2])
os.environ.update(E2B_API_KEY=KEYS["server"], E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import raises, raises_soon, run  # noqa: E402
from packaging.version import Version  # noqa: E402

import e2b  # noqa: E402
from e2b import AsyncSandbox, Sandbox  # noqa: E402

MISSING = "0" * 32
# Without the retries that the SDK makes by itself.
ONCE = {"retries": 0}


async def both(kind: type[BaseException], call, **options) -> None:
    """The same by both SDKs. ``call`` gets the class."""
    raises(kind, lambda: call(Sandbox, **options))
    await raises_soon(kind, call(AsyncSandbox, **options))


async def check_authentication() -> None:
    for key in ("e2b_" + "00" * 20, KEYS["revoked"]):
        await both(e2b.AuthenticationException, lambda sdk, key=key: sdk.create(api_key=key))
    with Sandbox.create() as sandbox:
        wrong = {
            "X-Access-Token": "sbt_owner_" + "0" * 64,
            "E2b-Sandbox-Id": sandbox.sandbox_id,
            "E2b-Sandbox-Port": "49983",
        }
        stolen = Sandbox(
            sandbox_id=sandbox.sandbox_id,
            sandbox_domain=None,
            envd_version=Version("0.5.7"),
            envd_access_token=wrong["X-Access-Token"],
            traffic_access_token=None,
            connection_config=e2b.ConnectionConfig(extra_sandbox_headers=wrong),
        )
        raises(e2b.AuthenticationException, lambda: stolen.commands.run("true"))
        raises(e2b.AuthenticationException, lambda: stolen.files.read("a"))


def check_missing_scope() -> None:
    error = raises(e2b.SandboxException, lambda: Sandbox.create(api_key=KEYS["reader"]))
    assert "sessions:write" in str(error)
    assert Sandbox.list(api_key=KEYS["reader"]).next_items() is not None


async def check_rate_limit() -> None:
    with Sandbox.create(api_key=KEYS["limited"]):
        await both(e2b.RateLimitException, lambda sdk: sdk.create(api_key=KEYS["limited"], **ONCE))
    Sandbox.list(api_key=KEYS["slow"]).next_items()
    raises(e2b.RateLimitException, lambda: Sandbox.list(api_key=KEYS["slow"], **ONCE).next_items())


async def check_not_found() -> None:
    await both(e2b.SandboxNotFoundException, lambda sdk: sdk.connect(MISSING))
    await both(e2b.SandboxNotFoundException, lambda sdk: sdk.get_info(MISSING))
    await both(e2b.SandboxNotFoundException, lambda sdk: sdk.set_timeout(MISSING, 60))
    with Sandbox.create() as sandbox:
        raises(e2b.FileNotFoundException, lambda: sandbox.files.read("missing"))
        raises(e2b.FileNotFoundException, lambda: sandbox.files.get_info("missing"))
        raises(e2b.NotFoundException, lambda: sandbox.commands.send_stdin(99_999_999, "x"))


def check_timeout() -> None:
    with Sandbox.create() as sandbox:
        raises(e2b.TimeoutException, lambda: sandbox.commands.run("sleep 30", timeout=0.3))
        raises(
            e2b.TimeoutException, lambda: sandbox.commands.run("sleep 30", request_timeout=0.3, timeout=0.3)
        )
    raises(e2b.SandboxNotRunningException, lambda: sandbox.commands.run("true"))
    raises(e2b.SandboxNotRunningException, lambda: sandbox.files.read("a"))


def check_not_enough_space() -> None:
    with Sandbox.create() as sandbox:
        sandbox.commands.run("head -c 60000000 /dev/urandom >full || true")
        raises(e2b.NotEnoughSpaceException, lambda: sandbox.files.write("more", os.urandom(30_000_000)))
        assert sandbox.files.exists("full"), "the sandbox goes on"


def check_invalid_argument() -> None:
    with Sandbox.create() as sandbox:
        raises(e2b.InvalidArgumentException, lambda: sandbox.files.read("/tmp"))
        raises(e2b.InvalidArgumentException, lambda: sandbox.files.list("\0"))
        raises(e2b.InvalidArgumentException, lambda: sandbox.commands.run("true", user="nobody"))
        raises(e2b.InvalidArgumentException, lambda: sandbox.commands.run("true", envs={"A=B": "c"}))
        error = raises(e2b.SandboxException, lambda: sandbox.set_timeout(-5))
        assert getattr(error, "status_code", 400) == 400, error


async def check_busy() -> None:
    made = []
    try:
        error = None
        while error is None and len(made) < 20:
            try:
                made.append(Sandbox.create(**ONCE))
            except e2b.ServiceBusyException as full:
                error = full
        assert error is not None, "the server took them all"
        assert "limit" in str(error)
        await raises_soon(e2b.ServiceBusyException, AsyncSandbox.create(**ONCE))
        assert made[0].commands.run("echo works").stdout == "works\n"
    finally:
        for each in made:
            each.kill()


run(globals())
