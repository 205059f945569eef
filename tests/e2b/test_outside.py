"""E2B's SDK decides what a sandbox reaches, and its ``get_host`` names where visitors reach the sandbox.

The worker is in this process, so names of ``.test`` resolve as the test says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandlot.api.e2b.options import E2bOptions
from sandlot.api.previews.options import PreviewOptions
from sandlot.domain.network.preview_links import LinkTokens, PreviewDomain
from tests.e2b.clients import NEWEST, Found, checks_in, run
from tests.e2b.conftest import E2B_KEY, SERVER_KEY
from tests.network.conftest import opened_worker
from tests.service.served import served
from tests.unit.network.rig import OK, answering, outside, resolving

pytestmark = [pytest.mark.docker, pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]

PROGRAM = "outside_calls.py"
FORMS = ("sync", "async")
DOMAIN = PreviewDomain.parse("http://*.preview.test")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def found() -> AsyncIterator[dict[str, Found]]:
    with pytest.MonkeyPatch.context() as patch:
        resolving(patch, a=["127.0.0.1"], b=["127.0.0.1"])
        async with (
            opened_worker() as worker,
            outside(answering(OK)) as host,
            served(
                worker,
                api_key=SERVER_KEY,
                previews=PreviewOptions(LinkTokens(b"s" * 32), DOMAIN),
                e2b=E2bOptions(b"s" * 32, DOMAIN.authority),
            ) as url,
        ):

            async def ran(form: str) -> Found:
                return await asyncio.to_thread(run, NEWEST, PROGRAM, url, E2B_KEY, form, str(host.port))

            yield {form: await ran(form) for form in FORMS}
            assert len(host.received) >= 3 * len(FORMS)  # the connections that were allowed came here


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("check", checks_in(PROGRAM))
async def test_outside(found: dict[str, Found], form: str, check: str) -> None:
    found[form].assert_passed(check)
