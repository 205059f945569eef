"""A kernel's state over a restart of the server. ``restart_calls.py URL KEY sync|async before|after``.

The server is killed and started again between the two. ``after`` knows nothing but the sandbox's metadata.
"""

from __future__ import annotations

import os
import sys

URL, KEY, FORM, WHEN = sys.argv[1:5]
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import caller, run  # noqa: E402
from e2b_code_interpreter import AsyncSandbox, Sandbox  # noqa: E402

import e2b  # noqa: E402

got = caller(FORM)
SDK = Sandbox if FORM == "sync" else AsyncSandbox
METADATA = {"restart": FORM}


class Made:
    sandbox: Sandbox | AsyncSandbox


async def ran(code, **options):
    return await got(Made.sandbox.run_code, code, **options)


if WHEN == "before":

    async def check_before() -> None:
        Made.sandbox = await got(SDK.create, timeout=600, metadata=METADATA)
        await ran("import os\nx = 42\nkernel = os.getpid()")
        await ran("kept=here", language="bash")
        context = await got(Made.sandbox.create_code_context, cwd="/tmp")
        await ran("y = 7", context=context)

else:

    async def check_found_and_connected() -> None:
        pages = SDK.list(query=e2b.SandboxQuery(metadata=METADATA))
        (known,) = await got(pages.next_items)
        Made.sandbox = await got(SDK.connect, known.sandbox_id)

    async def check_the_variables_are_there() -> None:
        assert (await ran("x")).text == "42"
        assert (await ran("kernel == os.getpid()")).text == "True", "the kernel was never started again"
        assert (await ran("echo $kept", language="bash")).logs.stdout == ["here\n"]

    async def check_contexts_are_there() -> None:
        contexts = await got(Made.sandbox.list_code_contexts)
        (own,) = [each for each in contexts if each.id not in ("python", "bash")]
        assert own.cwd == "/tmp"
        assert (await ran("y", context=own)).text == "7"
        assert (await ran("y")).error.name == "NameError"

    async def check_the_end() -> None:
        assert await got(Made.sandbox.kill)


run(globals())
