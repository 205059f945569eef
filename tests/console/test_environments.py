"""Environments with their state, as the API tells it."""

from __future__ import annotations

import pytest

from tests.console.conftest import Console

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


async def test_each_environment_shows_whether_it_is_ready(console: Console) -> None:
    page = console.page
    async with console.client.create():  # of which a sandbox exists
        catalogue = await console.client.catalogue()
        states = {one.name: one.readiness[0] for one in catalogue.environments}
        assert states["base"].state == "ready"
        await console.go("/admin/environments")
        for name, known in states.items():
            card = page.locator("article", has=page.get_by_role("heading", name=name, exact=True))
            await card.locator(".badge", has_text=known.state).wait_for()
            if known.reason:
                await card.get_by_text(known.reason).wait_for()
